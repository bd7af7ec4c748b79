# SPDX-License-Identifier: Apache-2.0
"""Regions, pause and resume in a preloaded process."""

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import types

import stayput
from support import MIB, Case, Runtime

DATA = bytes(range(256)) * (3 * MIB // 256)


class Preloaded(Case):
    def setUp(self):
        self.cuda = Runtime()

    def allocate(self, tag="weights", policy="host", size=3 * MIB):
        with stayput.region(tag, policy):
            return self.cuda.malloc(size)

    def test_pause_and_resume_keep_address_and_contents(self):
        ptr = self.allocate()
        self.cuda.write(ptr, DATA)
        before = self.cuda.free_bytes()
        stayput.pause("weights")
        self.assertGreaterEqual(self.cuda.free_bytes(), before + len(DATA))
        stayput.resume("weights")
        self.assertEqual(self.cuda.read(ptr, len(DATA)), DATA)

    def test_policies_are_enum_or_text(self):
        for policy in (stayput.Policy.ZERO, "zero"):
            ptr = self.allocate(policy=policy)
            self.assertEqual(stayput.query(ptr).policy, "zero")
            self.assertIs(stayput.query(ptr).policy, stayput.Policy.ZERO)

    def test_unknown_policy_is_invalid(self):
        with self.assertRaisesRegex(
            stayput.Invalid, "'host', 'Host'|'Host' is not a policy"
        ):
            self.allocate(policy="Host")
        self.assertEqual(stayput.regions(), [])

    def test_what_is_no_tag_is_invalid(self):
        for tag in ("", "a b", "a\0b", "\udc80", "ä", "x" * 64, b"a", None):
            with self.assertRaises(stayput.Invalid):
                stayput.region(tag).__enter__()
            with self.assertRaises(stayput.Invalid):
                stayput.pause(tag)

    def test_a_region_ends_with_an_exception(self):
        with self.assertRaises(ZeroDivisionError), stayput.region("weights"):
            raise ZeroDivisionError
        with self.assertRaises(stayput.NotFound):
            stayput.query(self.cuda.malloc(MIB))

    def test_a_region_is_a_decorator(self):
        @stayput.region("weights", "discard")
        def load():
            return self.cuda.malloc(MIB)

        self.assertEqual(stayput.query(load()).tag, "weights")
        self.assertEqual(stayput.query(load()).policy, "discard")

    def test_native_inside_a_region(self):
        with stayput.region("weights"):
            with stayput.native():
                native = self.cuda.malloc(MIB)
            inside = self.cuda.malloc(MIB)
        self.assertEqual(stayput.query(inside).tag, "weights")
        with self.assertRaisesRegex(stayput.NotFound, "in no allocation of a region"):
            stayput.query(native)

    def test_query_says_all(self):
        ptr = self.allocate("kv_cache", "discard", 3 * MIB)
        stayput.pause()
        info = stayput.query(ptr + 5)
        self.assertEqual(
            info,
            stayput.Info("kv_cache", "discard", "paused", 0, ptr, 3 * MIB, 0),
        )
        stayput.resume()
        self.assertEqual(
            (stayput.query(ptr).state, stayput.query(ptr).generation), ("active", 1)
        )

    def test_reports_have_what_was_done(self):
        self.cuda.write(self.allocate(), DATA)
        self.allocate("kv_cache", "discard", 8 * MIB)
        report = stayput.pause()
        self.assertEqual(
            (report.operation, report.allocations, report.failed), ("pause", 2, 0)
        )
        self.assertEqual(report.total.device, -1)
        self.assertEqual([part.device for part in report.devices], [0])
        self.assertGreaterEqual(report.total.bytes_released, 11 * MIB)
        self.assertGreater(report.total.bytes_copied, 0)
        self.assertGreater(report.seconds, 0)
        self.assertEqual(stayput.resume().total.bytes_restored, report.total.bytes_released)

    def test_reports_are_readable(self):
        self.cuda.write(self.allocate(), DATA)
        text = repr(stayput.pause())
        self.assertRegex(
            text,
            r"^<pause: 1 allocation in [\d.]+ ms; GPU 0: 4\.0 MiB released; "
            r"4\.0 MiB copied at [\d.]+ GB/s",
        )

    def test_pause_of_several_tags_is_one_step(self):
        self.allocate("a")
        self.allocate("b")
        self.allocate("c")
        with self.assertRaises(stayput.NotFound):
            stayput.pause("a", "b", "nobody")
        self.assertEqual(
            {r.tag: r.state for r in stayput.regions()},
            {"a": "active", "b": "active", "c": "active"},
        )
        stayput.pause("a", "b")
        self.assertEqual(
            {r.tag: r.state for r in stayput.regions()},
            {"a": "paused", "b": "paused", "c": "active"},
        )

    def test_pause_with_another_policy(self):
        ptr = self.allocate()
        self.cuda.write(ptr, DATA)
        report = stayput.pause(policy=stayput.Policy.ZERO)
        self.assertEqual(report.total.bytes_copied, 0)
        stayput.resume()
        self.assertEqual(self.cuda.read(ptr, len(DATA)), bytes(len(DATA)))
        with self.assertRaisesRegex(stayput.Invalid, "cannot be asked of a pause"):
            stayput.pause(policy="keep")

    def test_regions_and_region_info_agree(self):
        self.allocate("a", size=5 * MIB)
        self.allocate("b", "keep", MIB)
        a, b = stayput.regions()
        self.assertEqual((a.tag, a.bytes_active, a.count_active), ("a", 5 * MIB, 1))
        self.assertEqual((b.tag, b.bytes_kept, b.count_kept), ("b", MIB, 1))
        self.assertEqual(stayput.region_info("a"), a)
        self.assertRegex(str(a), r"^a: active, 5\.0 MiB active, 6\.0 MiB device$")

    def test_regions_that_come_up_meanwhile_are_there(self):
        self.allocate("a")
        library = stayput.library()
        real = library.stayput_region_list

        def racing(infos, capacity, count):
            answer = real(infos, capacity, count)
            if infos is None:
                self.allocate("b")
            return answer

        library.stayput_region_list = racing
        self.assertEqual([r.tag for r in stayput.regions()], ["a", "b"])

    def test_stream_ordered_memory_is_counted(self):
        self.allocate()
        ptr = ctypes.c_void_p()
        with stayput.region("weights"):
            self.cuda.call("cudaMallocAsync", ctypes.byref(ptr), ctypes.c_size_t(MIB), None)
        self.assertEqual(stayput.region_info("weights").bytes_stream_ordered, MIB)
        report = stayput.pause()
        self.assertEqual(report.bytes_stream_ordered, MIB)
        self.assertIn("1.0 MiB stream-ordered stay", repr(report))

    def test_snapshot_is_parsed(self):
        self.allocate()
        shot = stayput.snapshot()
        self.assertEqual(shot["pid"], os.getpid())
        self.assertEqual(shot["regions"][0]["tag"], "weights")
        self.assertEqual(shot["regions"][0]["bytes_active"], 3 * MIB)

    def test_host_copy_shows_paused_contents(self):
        ptr = self.allocate()
        self.cuda.write(ptr, DATA)
        with self.assertRaisesRegex(stayput.NotFound, "kept"):
            stayput.host_copy(ptr, 10)
        stayput.pause()
        view = stayput.host_copy(ptr + 256, 512)
        self.assertEqual(bytes(view), DATA[256:768])
        self.assertTrue(view.readonly)

    def test_host_memory_is_reserved_and_trimmed(self):
        self.allocate()
        stayput.host_reserve("weights")
        stayput.pause()
        stayput.resume()
        self.assertGreater(stayput.snapshot()["host_bytes"], 0)
        stayput.host_trim()
        self.assertEqual(stayput.snapshot()["host_bytes"], 0)
        with self.assertRaises(stayput.NotFound):
            stayput.host_reserve("nobody")
        with self.assertRaises(stayput.Invalid):
            stayput.host_trim(-1)

    def test_busy_during_a_capture(self):
        self.allocate()
        with self.cuda.capture():
            for wait in (None, 0):
                with self.assertRaisesRegex(stayput.Busy, "capture") as caught:
                    stayput.pause(wait=wait)
                self.assertEqual(caught.exception.code, -3)
        self.assertEqual(stayput.pause().allocations, 1)

    def test_pause_waits_for_a_capture_to_end(self):
        self.allocate()
        began, end = threading.Event(), threading.Event()

        def capture():
            with self.cuda.capture():
                began.set()
                end.wait()

        thread = threading.Thread(target=capture)
        thread.start()
        began.wait()
        with self.assertRaises(stayput.Busy):
            stayput.pause()
        end.set()
        self.assertEqual(stayput.pause(wait=30).allocations, 1)
        thread.join()

    def test_another_thread_is_outside(self):
        found = []
        with stayput.region("weights"):
            thread = threading.Thread(target=lambda: found.append(self.cuda.malloc(MIB)))
            thread.start()
            thread.join()
        with self.assertRaises(stayput.NotFound):
            stayput.query(found[0])

    def test_a_pause_lets_other_threads_run_and_is_busy(self):
        ptr = self.allocate()
        release, running = threading.Event(), threading.Event()
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            lambda _: (running.set(), release.wait())
        )
        stream = ctypes.c_void_p()
        self.cuda.call("cudaStreamCreate", ctypes.byref(stream))
        self.cuda.call("cudaLaunchHostFunc", stream, callback, None)
        running.wait()
        with self.assertRaises(stayput.Busy):
            stayput.pause(only_if_idle=True)
        pauser = threading.Thread(target=stayput.pause)
        pauser.start()
        # The pause waits for the stream, which waits for this thread.
        while stayput.query(ptr).state != "pausing":
            os.sched_yield()
        for attempt in (
            lambda: stayput.pause(block=False),
            lambda: stayput.pause(wait=0),
            lambda: stayput.resume(block=False),
        ):
            with self.assertRaises(stayput.Busy):
                attempt()
        release.set()
        pauser.join()
        self.assertEqual(stayput.regions()[0].state, "paused")

    def test_progress_needs_no_tqdm(self):
        self.allocate()
        self.assertEqual(stayput.pause(progress=True).allocations, 1)
        self.assertEqual(stayput.resume(progress=True).allocations, 1)

    def test_progress_reaches_the_total(self):
        bars = []

        class Bar:
            def __init__(self, total, **_):
                self.total, self.n = total, 0
                bars.append(self)

            def update(self, count):
                self.n += count

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

        sys.modules["tqdm"] = types.ModuleType("tqdm")
        sys.modules["tqdm.auto"] = types.ModuleType("tqdm.auto")
        sys.modules["tqdm.auto"].tqdm = Bar
        self.allocate(size=8 * MIB)
        stayput.pause("weights", progress=True)
        stayput.resume("weights", progress=True)
        self.assertEqual([(bar.n, bar.total) for bar in bars], [(8 * MIB, 8 * MIB)] * 2)

    def test_callbacks_hear_of_changes(self):
        ptr = self.allocate("kv_cache", "discard")
        heard = []
        remove = stayput.on_change(lambda *change: heard.append(change))
        stayput.pause()
        stayput.resume()
        self.assertEqual(
            [c[:2] for c in heard], [("releasing", "kv_cache"), ("restored", "kv_cache")]
        )
        for _, _, (there,) in heard:
            self.assertEqual((there.base, there.device), (ptr, 0))
            self.assertGreaterEqual(there.size, 3 * MIB)
        remove()
        stayput.pause()
        self.assertEqual(len(heard), 2)
        with self.assertRaises(stayput.NotFound):
            remove()

    def test_callbacks_may_ask_and_raise_and_not_pause(self):
        ptr = self.allocate()
        heard, raised = [], []
        sys.unraisablehook = lambda event: raised.append(event.exc_type)

        def callback(change, _tag, _ranges):
            heard.append(stayput.query(ptr).tag)
            stayput.resume()

        stayput.on_change(callback)
        stayput.pause()
        self.assertEqual((heard, raised), (["weights"], [stayput.Busy]))
        self.assertEqual(stayput.query(ptr).state, "paused")

    def test_active_and_found(self):
        self.assertTrue(stayput.is_active())
        self.assertEqual(stayput.library().stayput_version().decode(), stayput.__version__)


IMPORTER = """
import ctypes, sys
from support import Runtime

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]

cuda, ptr = Runtime(), ctypes.c_void_p()
handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1]))
cuda.call("cudaIpcOpenMemHandle", ctypes.byref(ptr), handle, 1)
print("open", flush=True)
sys.stdin.read()
"""


class Shared(Case):
    def test_pause_says_what_other_processes_hold(self):
        cuda, folder = Runtime(), tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.environ["FAKECUDA_SHARE"] = folder.name + "/share"
        with stayput.region("weights"):
            ptr = cuda.malloc(4 * MIB)
        handle = ctypes.create_string_buffer(64)
        cuda.call("cudaIpcGetMemHandle", handle, ctypes.c_void_p(ptr))
        importer = subprocess.Popen(
            [sys.executable, "-c", IMPORTER, handle.raw.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.assertEqual(importer.stdout.readline(), b"open\n")
        report = stayput.pause()
        self.assertEqual(report.total.bytes_held, 4 * MIB)
        self.assertIn(str(importer.pid), report.note)
        self.assertIn("4.0 MiB held", repr(report))
        with self.assertRaises(stayput.Busy):
            stayput.pause(fail_if_held=True)
        importer.communicate()
        report = stayput.pause()
        self.assertEqual((report.total.bytes_released, report.note), (4 * MIB, ""))


class Small(Case):
    ENVIRONMENT = {"FAKECUDA_MEMORY": "64MiB", "STAYPUT_HOST_LIMIT": "8MiB"}

    def setUp(self):
        self.cuda = Runtime()

    def test_out_of_device_memory(self):
        with stayput.region("kv_cache", "discard"):
            self.cuda.malloc(32 * MIB)
        stayput.pause()
        taken = self.cuda.malloc(48 * MIB)
        for wait in (None, 0, 0.01):
            with self.assertRaisesRegex(
                stayput.OutOfDeviceMemory, "16777216 are free"
            ) as caught:
                stayput.resume(wait=wait)
        self.assertEqual(caught.exception.code, -4)
        self.assertEqual(caught.exception.report.operation, "resume")
        self.assertIsInstance(caught.exception, MemoryError)
        threading.Timer(0.05, self.cuda.free, [taken]).start()
        stayput.resume(wait=float("inf"))

    def test_out_of_host_memory(self):
        with stayput.region("weights"):
            self.cuda.malloc(32 * MIB)
        with self.assertRaisesRegex(stayput.OutOfHostMemory, "STAYPUT_HOST_LIMIT"):
            stayput.pause()
        self.assertEqual(stayput.regions()[0].state, "active")


class Deep(Case):
    PRELOAD = "stayput-deep"

    def test_deep_library_reaches_calls_by_name(self):
        cuda = Runtime()
        runtime = ctypes.CDLL("libcudart.so.13")
        ptr = ctypes.c_void_p()
        with stayput.region("weights"):
            runtime.cudaMalloc(ctypes.byref(ptr), ctypes.c_size_t(MIB))
        self.assertEqual(stayput.query(ptr.value).tag, "weights")
        cuda.free(ptr.value)


class NoVmm(Case):
    ENVIRONMENT = {"FAKECUDA_VMM": "0", "STAYPUT_LOG": "error"}

    def test_unsupported_without_virtual_memory(self):
        with stayput.region("weights"):
            Runtime().malloc(MIB)
        with self.assertRaises(stayput.Unsupported):
            stayput.pause()


class Broken(Case):
    ENVIRONMENT = {"FAKECUDA_FAIL": "cuMemUnmap:1:INVALID_VALUE", "STAYPUT_LOG": "error"}

    def test_driver_error(self):
        cuda = Runtime()
        with stayput.region("weights"):
            cuda.malloc(3 * MIB)
        with self.assertRaises(stayput.DriverError) as caught:
            stayput.pause()
        self.assertEqual(caught.exception.report.failed, 1)
