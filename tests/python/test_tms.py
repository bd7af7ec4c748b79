# SPDX-License-Identifier: Apache-2.0
"""libstayput-tms.so as the Python package torch_memory_saver uses it, and putting it in the
place of that package's own libraries."""

import contextlib
import ctypes
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from stayput import tms
from support import MIB, Case, Runtime

# What a library of the package has to have for it to be taken for one.
ORIGINAL = b"\x7fELF of %s\0tms_pause\0tms_set_current_tag\0"
STEMS = [
    "torch_memory_saver_hook_mode_preload_cu12",
    "torch_memory_saver_hook_mode_preload_cu13",
    "torch_memory_saver_hook_mode_torch_cu12",
    "torch_memory_saver_hook_mode_torch_cu13",
]
SIGNATURES = {
    "tms_set_current_tag": ([ctypes.c_char_p], ctypes.c_int),
    "tms_get_current_tag": ([], ctypes.c_char_p),
    "tms_set_interesting_region": ([ctypes.c_bool], ctypes.c_int),
    "tms_get_interesting_region": ([], ctypes.c_bool),
    "tms_set_enable_cpu_backup": ([ctypes.c_bool], ctypes.c_int),
    "tms_get_enable_cpu_backup": ([], ctypes.c_bool),
    "tms_set_cpu_backup_backend": ([ctypes.c_char_p], ctypes.c_int),
    "tms_get_cpu_backup_backend": ([], ctypes.c_char_p),
    "tms_set_enable_disk_backup": ([ctypes.c_bool], ctypes.c_int),
    "tms_get_enable_disk_backup": ([], ctypes.c_bool),
    "tms_set_disk_backup_dir": ([ctypes.c_char_p], ctypes.c_int),
    "tms_pause": ([ctypes.c_char_p], ctypes.c_int),
    "tms_resume": ([ctypes.c_char_p], ctypes.c_int),
    "tms_affected_devices": (
        [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_uint32],
        ctypes.c_uint32,
    ),
    "set_memory_margin_bytes": ([ctypes.c_uint64], ctypes.c_int),
    "tms_set_retain_cpu_backup": ([ctypes.c_bool], ctypes.c_int),
    "tms_get_retain_cpu_backup": ([], ctypes.c_bool),
    "tms_get_cpu_backup_pointer": (
        [ctypes.POINTER(ctypes.c_uint8), ctypes.c_uint64],
        ctypes.POINTER(ctypes.c_uint8),
    ),
}


def load(path):
    """The library with signatures set; every symbol is looked up by that."""
    library = ctypes.CDLL(path)
    for name, (arguments, result) in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


@contextlib.contextmanager
def region(library, tag, cpu_backup=False, backend=None):
    """Sets and restores what the package sets and restores, in that order."""
    before = (
        library.tms_get_current_tag(),
        library.tms_get_interesting_region(),
        library.tms_get_enable_cpu_backup(),
        library.tms_get_cpu_backup_backend(),
    )
    configure(library, tag, True, cpu_backup, backend)
    try:
        yield
    finally:
        assert library.tms_get_interesting_region()
        assert library.tms_get_enable_cpu_backup() == cpu_backup
        assert library.tms_get_cpu_backup_backend() == (backend or before[3])
        assert not library.tms_get_enable_disk_backup()
        assert library.tms_get_current_tag() == tag
        configure(library, *before)


def configure(library, tag, interesting, cpu_backup, backend):
    library.tms_set_current_tag(tag)
    library.tms_set_interesting_region(interesting)
    library.tms_set_enable_cpu_backup(cpu_backup)
    if backend is not None:
        library.tms_set_cpu_backup_backend(backend)
    library.tms_set_enable_disk_backup(False)


def backup_of(library, ptr, size):
    at = library.tms_get_cpu_backup_pointer(
        ctypes.cast(ptr, ctypes.POINTER(ctypes.c_uint8)), size
    )
    return bytes(at[:size]) if at else None


class Preloaded(Case):
    """Hook mode "preload", in a process that LD_PRELOAD has put the library into."""

    PRELOAD = "stayput-tms"

    def setUp(self):
        self.runtime = Runtime()
        self.library = load(os.environ["LD_PRELOAD"])

    def test_nested_regions_keep_what_they_should(self):
        library, runtime = self.library, self.runtime
        with region(library, b"weights", cpu_backup=True, backend=b"mmap"):
            kept = runtime.malloc(4 * MIB)
            with region(library, b"a tag of spaces"):
                lost = runtime.malloc(4 * MIB)
            more = runtime.malloc(4 * MIB)
        native = runtime.malloc(4 * MIB)
        for ptr, byte in ((kept, b"k"), (lost, b"l"), (more, b"m"), (native, b"n")):
            runtime.write(ptr, byte * MIB)
        free = runtime.free_bytes()
        self.assertEqual(library.tms_pause(None), 0)
        self.assertEqual(runtime.free_bytes(), free + 12 * MIB)
        self.assertEqual(backup_of(library, kept, MIB), b"k" * MIB)
        self.assertIsNone(backup_of(library, lost, MIB))
        self.assertEqual(library.tms_resume(b"a tag of spaces"), 0)
        self.assertEqual(runtime.free_bytes(), free + 8 * MIB)
        self.assertEqual(library.tms_resume(None), 0)
        self.assertEqual(runtime.read(kept, MIB), b"k" * MIB)
        self.assertEqual(runtime.read(more, MIB), b"m" * MIB)
        self.assertEqual(runtime.read(native, MIB), b"n" * MIB)
        self.assertNotEqual(runtime.read(lost, MIB), b"l" * MIB)
        self.assertIsNone(backup_of(library, kept, MIB))


class PreloadedWithEnvironment(Case):
    PRELOAD = "stayput-tms"
    ENVIRONMENT = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}

    def test_everything_is_kept_but_what_is_disabled(self):
        runtime = Runtime()
        library = load(os.environ["LD_PRELOAD"])
        everything = runtime.malloc(4 * MIB)
        runtime.write(everything, b"e" * MIB)
        self.assertTrue(library.tms_get_interesting_region())
        self.assertTrue(library.tms_get_enable_cpu_backup())
        library.tms_set_interesting_region(False)
        native = runtime.malloc(4 * MIB)
        library.tms_set_interesting_region(True)
        runtime.write(native, b"n" * MIB)
        library.tms_pause(None)
        self.assertEqual(runtime.read(native, MIB), b"n" * MIB)
        library.tms_resume(None)
        self.assertEqual(runtime.read(everything, MIB), b"e" * MIB)


class Opened(Case):
    """Hook mode "torch": nothing is preloaded, PyTorch opens the library for itself."""

    PRELOAD = None

    def test_pytorchs_allocations_can_be_paused(self):
        library = load(str(tms.library()))
        allocate, release = library.tms_torch_malloc, library.tms_torch_free
        allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        allocate.restype = ctypes.c_void_p
        release.argtypes = [ctypes.c_void_p, *allocate.argtypes]
        release.restype = None
        self.assertIsNone(allocate(4 * MIB, 0, None))
        runtime = Runtime()
        with region(library, b"weights", cpu_backup=True):
            kept = allocate(4 * MIB, 0, None)
            self.assertIsNone(allocate(1 << 50, 0, None))
        native = allocate(4 * MIB, 0, None)
        runtime.write(kept, b"k" * MIB)
        free = runtime.free_bytes()
        self.assertEqual(library.tms_pause(b"weights"), 0)
        self.assertEqual(runtime.free_bytes(), free + 4 * MIB)
        self.assertEqual(library.tms_resume(b"weights"), 0)
        self.assertEqual(runtime.read(kept, MIB), b"k" * MIB)
        release(kept, 4 * MIB, 0, None)
        release(native, 4 * MIB, 0, None)
        self.assertEqual(runtime.free_bytes(), free + 8 * MIB)


class Installation(Case):
    PRELOAD = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.site = Path(folder.name)
        (self.site / "torch_memory_saver").mkdir()
        (self.site / "torch_memory_saver" / "__init__.py").write_text("raise ImportError")
        self.libraries = [self.site / f"{stem}.abi3.so" for stem in STEMS]
        for library in self.libraries:
            library.write_bytes(ORIGINAL % library.name.encode())
            library.chmod(0o640)

    def tms(self, *arguments, status=0):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            got = tms.main([*arguments, "--package-dir", str(self.site)])
        self.assertEqual(got, status, out.getvalue() + err.getvalue())
        return out.getvalue() + err.getvalue()

    def contents(self):
        return {
            path.name: (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
            for path in self.site.iterdir()
            if path.is_file()
        }

    def assert_refused(self, command, text):
        before = self.contents()
        self.assertIn(text, self.tms(command, status=2))
        self.assertEqual(self.contents(), before)

    def test_install_and_uninstall_end_where_they_began(self):
        before = self.contents()
        self.assertEqual(self.tms("status", status=1).count(": original"), 4)
        self.assertEqual(self.tms("install").count("original kept as"), 4)
        for library in self.libraries:
            self.assertEqual(library.read_bytes(), tms.library().read_bytes())
            self.assertEqual(library.stat().st_mode & 0o777, 0o755)
            # The package takes exactly one file that its pattern matches.
            stem = library.name[: -len(".abi3.so")]
            self.assertEqual(list(self.site.glob(f"{stem}.*.so")), [library])
        self.assertEqual(self.tms("status").count(": ours"), 4)
        self.assertEqual(self.tms("install").count("already"), 4)
        self.assertEqual(self.tms("uninstall").count("the original again"), 4)
        self.assertEqual(self.contents(), before)
        self.assertEqual(self.tms("uninstall").count("is the original\n"), 4)

    def test_what_is_installed_can_be_loaded(self):
        self.tms("install")
        code = (
            "import ctypes, os;print(ctypes.CDLL(os.environ['LD_PRELOAD']).tms_pause(None))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=dict(os.environ, LD_PRELOAD=str(self.libraries[0])),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(done.stdout, "0\n")

    def test_a_dry_run_changes_nothing(self):
        before = self.contents()
        self.assertEqual(self.tms("install", "--dry-run").count("would be"), 4)
        self.assertEqual(self.contents(), before)
        self.tms("install")
        before = self.contents()
        self.assertEqual(self.tms("uninstall", "--dry-run").count("would be"), 4)
        self.assertEqual(self.contents(), before)

    def test_a_newer_library_takes_the_place_of_an_older_one(self):
        before = self.contents()
        older = self.site / "older"
        older.write_bytes(tms.library().read_bytes() + b"older")
        self.tms("install", "--library", str(older))
        self.assertIn("ours, of another build", self.tms("status"))
        self.assertEqual(self.tms("install").count("renewed"), 4)
        self.assertEqual(self.libraries[0].read_bytes(), tms.library().read_bytes())
        self.tms("uninstall")
        older.unlink()
        self.assertEqual(self.contents(), before)

    def test_a_file_that_is_open_keeps_its_contents(self):
        with self.libraries[0].open("rb") as opened:
            self.tms("install")
            self.assertEqual(opened.read(), ORIGINAL % self.libraries[0].name.encode())

    def test_the_checksum_is_one_that_sha256sum_reads(self):
        self.tms("install")
        kept = self.site / (self.libraries[0].name + tms.KEPT)
        record = self.site / (self.libraries[0].name + tms.CHECKSUM)
        digest = hashlib.sha256(kept.read_bytes()).hexdigest()
        self.assertEqual(record.read_text(), f"{digest}  {kept.name}\n")

    def test_an_original_that_has_changed_is_not_put_back(self):
        self.tms("install")
        kept = self.site / (self.libraries[2].name + tms.KEPT)
        kept.write_bytes(b"something else")
        self.assert_refused("uninstall", "is not what was kept")
        self.assert_refused("install", "is not what was kept")

    def test_a_package_that_was_installed_anew_is_not_overwritten(self):
        self.tms("install")
        for library in self.libraries[1:3]:
            library.write_bytes(ORIGINAL % b"a newer version")
            self.assert_refused("uninstall", f"{library} is not ours")
            self.assert_refused("install", f"remove {library}{tms.KEPT}")
        self.assertIn("was installed anew", self.tms("status", status=1))

    def test_ours_without_an_original_is_left_alone(self):
        shutil.copyfile(tms.library(), self.libraries[0])
        self.assert_refused("install", "its original is gone")
        self.assert_refused("uninstall", "its original is gone")

    def test_a_library_that_is_missing_is_told(self):
        self.tms("install")
        self.libraries[3].unlink()
        self.assert_refused("uninstall", "is missing")

    def test_other_libraries_are_not_touched(self):
        self.libraries[0].write_bytes(b"a script")
        self.assert_refused("install", "is no library")
        self.libraries[0].write_bytes(b"\x7fELF\0tms_region_enter\0tms_pause\0")
        self.assert_refused("install", "from 0.0.8 on")

    def test_an_installation_that_was_cut_short_can_be_repeated_and_undone(self):
        before = self.contents()
        for again in ("install", "uninstall"):
            place = tms.Place(self.libraries[0])
            place._keep()
            self.tms(again)
            self.tms("uninstall")
            self.assertEqual(self.contents(), before)

    def test_an_installation_that_failed_half_way_can_be_repeated(self):
        before = self.contents()
        copies = shutil.copyfile
        full = OSError(28, "No space left on device")
        steps = [copies, mock.Mock(side_effect=full)]
        with mock.patch("shutil.copyfile", lambda *paths: steps.pop(0)(*paths)):
            self.assertIn("failed: [Errno 28]", self.tms("install", status=2))
        self.assertEqual(self.tms("status", status=1).count(": ours"), 1)
        self.assertEqual(self.tms("install").count("already"), 1)
        self.tms("uninstall")
        self.assertEqual(self.contents(), before)

    def test_without_hard_links_a_failed_installation_can_be_repeated(self):
        before = self.contents()
        full = OSError(28, "No space left on device")
        with mock.patch("os.link", side_effect=PermissionError):
            with mock.patch("shutil.copyfile", side_effect=full):
                self.assertIn("failed: [Errno 28]", self.tms("install", status=2))
            self.tms("install")
        self.tms("uninstall")
        self.assertEqual(self.contents(), before)

    def test_installations_at_once_keep_the_originals(self):
        before = self.contents()
        options = [sys.executable, "-m", "stayput.tms", "--package-dir", str(self.site)]
        for command in ("install", "uninstall"):
            running = [
                subprocess.Popen([*options, command], stdout=subprocess.DEVNULL)
                for _ in range(4)
            ]
            self.assertEqual([each.wait() for each in running], [0] * 4)
        self.assertEqual(self.contents(), before)

    def test_an_original_that_another_process_kept_is_not_overwritten(self):
        before = self.contents()
        place = tms.Place(self.libraries[0])
        self.tms("install")
        with self.assertRaises(FileExistsError):
            place._keep()
        kept = place.kept.read_bytes()
        self.assertEqual(kept, before[self.libraries[0].name][0])

    def test_links_are_kept_as_links(self):
        store = self.site / "torch_memory_saver" / "store"
        self.libraries[0].rename(store)
        self.libraries[0].symlink_to(store)
        self.tms("install")
        self.assertFalse(self.libraries[0].is_symlink())
        self.assertNotEqual(store.read_bytes(), tms.library().read_bytes())
        self.tms("uninstall")
        self.assertEqual(os.readlink(self.libraries[0]), str(store))

    def test_a_folder_without_the_package_is_refused(self):
        self.site = self.site / "torch_memory_saver" / "nothing"
        self.site.mkdir()
        self.assertIn("is not the folder", self.tms("status", status=2))

    def test_the_installed_package_is_found_without_importing_it(self):
        sys.path.insert(0, str(self.site))
        try:
            found = tms.package_folder(None)
        finally:
            sys.path.remove(str(self.site))
        self.assertEqual(found, self.site / "torch_memory_saver")
        with self.assertRaisesRegex(tms.Refused, "is not installed"):
            tms.package_folder(None)
