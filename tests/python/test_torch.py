# SPDX-License-Identifier: Apache-2.0
"""stayput.torch over a stand-in for PyTorch; tests/gpu/python_torch.py has the real one."""

import ctypes
import os
import threading
from unittest import mock

import stayput
import stayput.torch as st
import torch
from support import MIB, Case


def tag(tensor):
    info = st.owner(tensor)
    return info and info.tag


class Regions(Case):
    """What holds of regions, whichever pool PyTorch lets win."""

    def test_a_region_has_its_tensors(self):
        with st.region("weights", "zero"):
            inside = torch.empty(MIB)
        self.assertIsNone(st.owner(torch.empty(MIB)))
        info = st.owner(inside)
        self.assertEqual((info.tag, info.policy, info.state), ("weights", "zero", "active"))

    def test_freed_blocks_stay_in_their_region(self):
        with st.region("a"):
            first = torch.empty(MIB)
            address = first.data_ptr()
            del first
        for other in (st.region("b"), st.region("a", "discard"), st.native()):
            with other:
                self.assertNotEqual(torch.empty(MIB).data_ptr(), address)
        self.assertNotEqual(torch.empty(MIB).data_ptr(), address)
        with st.region("a", "host"):
            second = torch.empty(MIB)
        self.assertNotEqual(second.data_ptr(), address)  # "default" and "host" differ
        with st.region("a"):
            self.assertEqual(torch.empty(MIB).data_ptr(), address)

    def test_the_innermost_region_counts(self):
        with st.region("a"):
            with st.region("b"):
                with st.region("a"):
                    self.assertEqual(tag(torch.empty(MIB)), "a")
                with st.native():
                    self.assertIsNone(tag(torch.empty(MIB)))
                self.assertEqual(tag(torch.empty(MIB)), "b")
            self.assertEqual(tag(torch.empty(MIB)), "a")
        self.assertIsNone(tag(torch.empty(MIB)))

    def test_a_region_inside_itself_shares_its_pool(self):
        with st.region("a"):
            first = torch.empty(MIB)
            address = first.data_ptr()
            del first
            with st.region("a"):
                self.assertEqual(torch.empty(MIB).data_ptr(), address)

    def test_exceptions_restore_everything(self):
        with self.assertRaises(ZeroDivisionError), st.region("a"):
            try:
                with st.region("b"):
                    raise KeyError
            except KeyError:
                self.assertEqual(tag(torch.empty(MIB)), "a")
            raise ZeroDivisionError
        self.assertEqual(torch.cuda.allocator.routes, [])
        self.assertIsNone(tag(torch.empty(MIB)))

    def test_a_failed_entry_restores_everything(self):
        with st.region("a"):
            with self.assertRaises(stayput.Invalid), st.region("not a tag"):
                pass
            with self.assertRaises(stayput.Invalid), st.region("b", "sometimes"):
                pass
            with self.assertRaises(RuntimeError), st.region("b", device=7):
                pass
            self.assertEqual(tag(torch.empty(MIB)), "a")
        self.assertEqual(torch.cuda.allocator.routes, [])

    def test_threads_use_one_tag_at_once(self):
        tags, together = [], threading.Barrier(3)

        def work():
            with st.region("a"):
                together.wait()
                tags.append(tag(torch.empty(MIB)))
                together.wait()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(tags, ["a"] * 3)
        self.assertEqual(torch.cuda.allocator.routes, [])

    def test_a_region_decorates(self):
        @st.region("a", "discard")
        def load():
            return torch.empty(MIB)

        self.assertEqual([tag(load()), tag(load())], ["a", "a"])

    def test_graphs_have_their_memory_in_the_tag(self):
        graph = torch.cuda.CUDAGraph()
        with st.region("weights"):
            with st.graph(graph, policy="discard"):
                output = torch.empty(MIB)
            weight = torch.empty(MIB)
        self.assertEqual(tag(weight), "weights")
        info = st.owner(output)
        self.assertEqual((info.tag, info.policy), ("cuda_graph", "discard"))
        self.assertIs(output.block.pool, graph.pool())
        st.pause("cuda_graph")
        self.assertEqual(st.owner(output).state, "paused")
        st.resume()

    def test_graphs_share_a_pool_that_they_are_given(self):
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with st.graph(first, tag="g"):
            torch.empty(MIB)
        with st.graph(second, first.pool(), tag="g"):
            torch.empty(MIB)
        self.assertIs(first.pool(), second.pool())
        self.assertEqual(stayput.region_info("g").count_active, 1)

    def test_what_outlives_a_region_is_not_in_it(self):
        with st.region("a"):
            torch.cuda.current_blas_handle()
            with st.graph(torch.cuda.CUDAGraph()):
                torch.cuda.current_blas_handle()
                torch.nn.functional.linear(None, None, None)
        st.pause()
        kept = [*torch.cuda._workspaces.values(), *torch.cuda._seeds]
        self.assertEqual(len(kept), 5)
        for block in kept:
            self.assertIsNone(st.owner(torch.Tensor(block)))

    def test_graphs_take_a_mem_pool_or_its_id(self):
        pool = torch.cuda.MemPool()
        for given in (pool, pool.id):
            graph = torch.cuda.CUDAGraph()
            with st.graph(graph, pool=given):
                torch.empty(MIB)
            self.assertIs(graph.pool(), pool.id)

    def test_a_failed_capture_restores_everything(self):
        graph = torch.cuda.CUDAGraph()
        with st.region("a"):
            with self.assertRaises(RuntimeError), st.graph(graph):
                # What is not allowed in a capture, so that it cannot be ended.
                torch.cuda.runtime.process.cudaDeviceSynchronize()
            self.assertEqual(torch.cuda.current_stream().cuda_stream, 0)
            self.assertEqual(tag(torch.empty(MIB)), "a")
        self.assertEqual(torch.cuda.allocator.routes, [])
        self.assertIsNone(tag(torch.empty(MIB)))

    def test_no_region_inside_a_capture(self):
        with st.graph(torch.cuda.CUDAGraph()):
            with self.assertRaisesRegex(stayput.Unsupported, "give stayput.torch.graph"):
                st.region("a").__enter__()
            with self.assertRaisesRegex(stayput.Busy, "capturing"):
                st.pause()


class RegionsBefore210(Regions):
    ENVIRONMENT = {"STANDIN_VERSION": "2.9.1"}


class Pause(Case):
    def test_pause_gives_the_cache_back(self):
        with st.region("a"):
            kept, dropped = torch.empty(4 * MIB), torch.empty(8 * MIB)
        outside = torch.empty(16 * MIB)
        torch.cuda.synchronize()
        before = torch.cuda.runtime.free_bytes()
        del dropped, outside
        report = st.pause(policy="discard")
        self.assertEqual(report.total.bytes_released, 4 * MIB)
        self.assertEqual(torch.cuda.runtime.free_bytes(), before + 28 * MIB)
        st.resume()
        self.assertEqual(tag(kept), "a")
        with st.region("a"):
            self.assertEqual(tag(torch.empty(8 * MIB)), "a")

    def test_pause_can_leave_the_cache(self):
        with st.region("a"):
            torch.empty(8 * MIB)
        self.assertEqual(st.pause(empty_cache=False).total.bytes_released, 8 * MIB)

    def test_pause_inside_a_region_gives_the_cache_back(self):
        with st.region("a"):
            torch.empty(8 * MIB)
        torch.empty(16 * MIB)
        before = torch.cuda.runtime.free_bytes()
        with st.region("b"):
            self.assertEqual(st.pause().total.bytes_released, 0)
            self.assertEqual(torch.cuda.runtime.free_bytes(), before + 24 * MIB)
            self.assertEqual(tag(torch.empty(MIB)), "b")

    def test_a_pool_that_is_full_is_kept(self):
        with st.region("a"):
            kept = torch.empty(MIB)
        pool = kept.block.pool
        st.pause()
        st.resume()
        with st.region("a"):
            self.assertIs(torch.empty(MIB).block.pool, pool)

    def test_pause_collects_garbage_when_asked(self):
        class Cycle:
            pass

        with st.region("a"):
            cycle = Cycle()
            cycle.me, cycle.tensor = cycle, torch.empty(8 * MIB)
            del cycle
        self.assertEqual(st.pause(collect=True).total.bytes_released, 0)

    def test_host_copy_has_shape_and_strides(self):
        with st.region("a"):
            block = torch.empty(64).block
        torch.cuda.runtime.write(block.ptr, bytes(range(64)))
        view = torch.Tensor(block, (2, 3), (1, 4), offset=2, dtype=2)
        st.pause()
        expected = [
            [int.from_bytes(bytes([at, at + 1]), "little") for at in row]
            for row in ((2, 10, 18), (4, 12, 20))
        ]
        self.assertEqual(st.host_copy(view).tolist(), expected)
        self.assertEqual(st.host_copy(torch.Tensor(None, (0, 3))).tolist(), [])
        st.resume()
        with self.assertRaises(stayput.NotFound):
            st.host_copy(view)


class Devices(Case):
    ENVIRONMENT = {"FAKECUDA_DEVICES": "2"}

    def on(self, device):
        with torch.cuda.device(device):
            return torch.empty(MIB)

    def test_each_device_has_its_pools(self):
        with st.region("a", device=[0, "cuda:1"]):
            tensors = [self.on(0), self.on(1)]
        self.assertEqual([st.owner(t).device for t in tensors], [0, 1])
        self.assertEqual([part.device for part in st.pause().devices], [0, 1])
        st.resume()

    def test_workspaces_of_each_device_stay_out(self):
        with st.region("a", device=[0, 1]), torch.cuda.device(1):
            torch.cuda.current_blas_handle()
        for block in torch.cuda._workspaces.values():
            self.assertIsNone(st.owner(torch.Tensor(block)))

    def test_workspaces_that_found_no_memory_stay_out_later(self):
        full = mock.patch("torch.cuda.current_blas_handle", side_effect=MemoryError)
        with full, self.assertRaises(MemoryError), st.region("a"):
            pass
        with st.region("a"):
            torch.cuda.current_blas_handle()
        for block in torch.cuda._workspaces.values():
            self.assertIsNone(st.owner(torch.Tensor(block)))

    def test_devices_in_use_are_isolated(self):
        self.on(1)
        with st.region("a"):
            inside = self.on(1)
        self.assertIsNot(inside.block.pool, torch.cuda.allocator.default)

    def test_other_devices_are_not_touched(self):
        with st.region("a"):
            torch.empty(MIB)
        st.pause()
        self.assertFalse(torch._C._cuda_hasPrimaryContext(1))


class Refusals(Case):
    def refuses(self, sentence, **environment):
        os.environ.update(environment)
        for attempt in (st.region("a"), st.native(), st.graph(None)):
            with self.assertRaisesRegex(stayput.Unsupported, sentence):
                attempt.__enter__()
        for name in environment:
            del os.environ[name]

    def test_expandable_segments_are_refused(self):
        for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            for text in (
                "expandable_segments:True",
                "max_split_size_mb:64,expandable_segments:true",
                " expandable_segments : TRUE",
            ):
                self.refuses(
                    f"{variable} has .*set expandable_segments:False", **{variable: text}
                )

    def test_the_async_backend_is_refused(self):
        self.refuses("set backend:native", PYTORCH_ALLOC_CONF="backend:cudaMallocAsync")

    def test_other_settings_are_not_refused(self):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:False,max_split_size_mb:64"
        with st.region("a"):
            self.assertEqual(tag(torch.empty(MIB)), "a")


class OldTorch(Refusals):
    ENVIRONMENT = {"STANDIN_VERSION": "2.5.1"}
    test_expandable_segments_are_refused = None
    test_the_async_backend_is_refused = None
    test_other_settings_are_not_refused = None

    def test_old_pytorch_is_refused(self):
        self.refuses("PyTorch 2.5.1 .* 2.6 or later")


class CpuTorch(OldTorch):
    ENVIRONMENT = {"STANDIN_CPU": "1"}
    test_old_pytorch_is_refused = None

    def test_pytorch_without_cuda_is_refused(self):
        self.refuses("without CUDA")


class Pluggable(Case):
    """In a process that is not preloaded."""

    PRELOAD = None

    def test_without_either_way_it_says_what_to_do(self):
        for attempt in (
            st.pause,
            st.resume,
            st.region("a").__enter__,
            st.native().__enter__,
        ):
            with self.assertRaisesRegex(stayput.Inactive, "use_pluggable_allocator"):
                attempt()
        with self.assertRaises(stayput.Inactive):
            st.owner(torch.empty(MIB))

    def pluggable(self):
        if not hasattr(ctypes.CDLL(stayput.library_path()), "stayput_torch_malloc"):
            self.skipTest("no stayput_torch_malloc in this library")
        st.use_pluggable_allocator()

    def test_regions_of_a_pluggable_allocator(self):
        self.pluggable()
        with st.region("a"):
            inside = torch.empty(3 * MIB)
            with st.native():
                native = torch.empty(3 * MIB)
        outside = torch.empty(3 * MIB)
        self.assertFalse(stayput.is_active())
        self.assertEqual([tag(t) for t in (inside, native, outside)], ["a", None, None])
        torch.cuda.runtime.write(inside.data_ptr(), b"contents")
        st.pause()
        self.assertEqual(st.owner(inside).state, "paused")
        st.resume()
        self.assertEqual(torch.cuda.runtime.read(inside.data_ptr(), 8), b"contents")
        del inside
        st.pause()
        self.assertEqual(stayput.region_info("a").count_active, 0)

    def test_graphs_of_a_pluggable_allocator(self):
        self.pluggable()
        graph = torch.cuda.CUDAGraph()
        with st.graph(graph):
            output = torch.empty(3 * MIB)
        self.assertEqual(tag(output), "cuda_graph")
        pool = graph.pool()
        other = torch.cuda.CUDAGraph()
        with st.graph(other):
            torch.empty(3 * MIB)
        self.assertIsNot(other.pool(), pool)
        del graph
        third = torch.cuda.CUDAGraph()
        with st.graph(third):
            torch.empty(3 * MIB)
        self.assertIs(third.pool(), pool)

    def test_out_of_memory_is_an_answer(self):
        self.pluggable()
        with st.region("a"), self.assertRaises(MemoryError):
            torch.empty(1 << 50)


class PluggableWhenPreloaded(Case):
    def test_a_preloaded_process_needs_no_pluggable_allocator(self):
        st.use_pluggable_allocator()
        with st.region("a"):
            self.assertIsNone(torch.empty(MIB).block.pool.allocator)
