# SPDX-License-Identifier: Apache-2.0
"""The package in a process that is not preloaded, its layout and its environment."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import stayput
from support import Case

TOP = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ.get("TEST_BUILD", TOP / "build"))
INSTALLED = os.environ.get("TEST_INSTALLED") == "1"
CC = os.environ.get("CC", "cc")


def python(code, env=None, *options):
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class NotPreloaded(Case):
    PRELOAD = None

    def test_import_opens_no_library_and_loads_little(self):
        # In numbers of modules: time is for benchmarks.
        code = (
            "import sys; before = set(sys.modules); import stayput;"
            "print(sorted(set(sys.modules) - before),"
            "'libcuda' in open('/proc/self/maps').read())"
        )
        self.assertEqual(python(code).stdout, "['stayput'] False\n")

    def test_everything_named_is_there(self):
        for name in stayput.__all__:
            self.assertIsNotNone(getattr(stayput, name))
        self.assertLessEqual(set(stayput.__all__), set(dir(stayput)))
        with self.assertRaises(AttributeError):
            stayput.nothing  # noqa: B018

    def test_inactive_says_what_to_do(self):
        self.assertFalse(stayput.is_active())
        for call in (
            stayput.library,
            stayput.pause,
            stayput.resume,
            stayput.regions,
            stayput.region("weights").__enter__,
        ):
            with self.assertRaisesRegex(stayput.Inactive, r"LD_PRELOAD=/.*/libstayput\.so"):
                call()

    def test_inactive_does_not_believe_the_variable(self):
        os.environ["LD_PRELOAD"] = stayput.library_path()
        self.assertFalse(stayput.is_active())

    def test_preload_env_gives_a_child_the_library(self):
        for deep in (False, True):
            child = python(
                "import stayput; print(stayput.is_active(), end='')",
                stayput.preload_env(deep=deep),
            )
            self.assertEqual(child.stdout, "True")

    def test_preload_env_adds_once_and_keeps_others(self):
        path = stayput.library_path()
        env = stayput.preload_env(
            env={"LD_PRELOAD": "/a/b.so /x/libstayput-deep.so", "A": "1"}
        )
        self.assertEqual(env, {"LD_PRELOAD": f"{path}:/a/b.so", "A": "1"})
        self.assertEqual(stayput.preload_env(env=env), env)

    def test_preload_env_has_the_settings(self):
        env = stayput.preload_env(
            regions={"kv_cache": stayput.Policy.DISCARD, "*": "keep"},
            default="engine",
            rules="big:size>=1GiB",
            env={},
            verify=True,
            host_limit="64GiB",
        )
        del env["LD_PRELOAD"]
        self.assertEqual(
            env,
            {
                "STAYPUT_REGIONS": "kv_cache=discard,*=keep",
                "STAYPUT_DEFAULT": "engine",
                "STAYPUT_RULES": "big:size>=1GiB",
                "STAYPUT_VERIFY": "1",
                "STAYPUT_HOST_LIMIT": "64GiB",
            },
        )

    def test_library_path_is_the_packages_own(self):
        package = Path(stayput.__file__).parent / "lib"
        for deep, name in ((False, "libstayput.so"), (True, "libstayput-deep.so")):
            folder = package if INSTALLED else BUILD
            self.assertEqual(stayput.library_path(deep), str(folder / name))

    def test_program_is_carried_or_said_to_be_missing(self):
        from stayput import _environment, _program

        code = (
            "import sys, stayput._program as p;"
            "sys.argv = ['stayput', '--version']; p.main()"
        )
        out = python(code)
        if any((f / "stayput").is_file() for f in _program.FOLDERS):
            self.assertIn(_environment.__version__, out.stdout)
            if INSTALLED:
                program = Path(stayput.__file__).parent / "bin" / "stayput"
                needed = subprocess.run(["ldd", program], capture_output=True, text=True)
                self.assertRegex(needed.stdout, r"libcjson\S* => \S*/stayput/bin/\.\./lib/")
        else:
            self.assertIn("has no program", out.stdout)


if INSTALLED:

    class Wheel(Case):
        PRELOAD = None

        def test_wheel_is_for_this_platform(self):
            (wheel,) = (BUILD / "wheel").glob("*.whl")
            tag = f"py3-none-linux_{os.uname().machine}"
            self.assertEqual(wheel.name, f"stayput-{stayput.__version__}-{tag}.whl")

        def test_wheel_is_what_is_tested(self):
            package = Path(stayput.__file__).parent
            self.assertNotEqual(package.parent, TOP / "python")
            self.assertTrue((package / "py.typed").exists())

        def build(self, libraries, folder, source=TOP / "python"):
            """Status and output of a build into folder/lib."""
            done = subprocess.run(
                f"{BUILD}/venv/bin/python3 setup.py -q egg_info --egg-base {folder} "
                f"build_py --build-lib {folder}/lib".split(),
                cwd=source,
                env=dict(os.environ, STAYPUT_BUILD=str(libraries)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            return done.returncode, done.stdout

        def test_wheel_is_not_built_without_one_of_the_libraries(self):
            for missing in BUILD.glob("libstayput*.so"):
                with tempfile.TemporaryDirectory() as folder:
                    for built in BUILD.glob("libstayput*.so"):
                        if built != missing:
                            (Path(folder) / built.name).symlink_to(built)
                    status, output = self.build(folder, folder)
                self.assertIn(missing.name, output)
                self.assertNotEqual(status, 0)

        def test_wheel_has_nothing_of_an_earlier_build(self):
            with tempfile.TemporaryDirectory() as folder:
                stale = Path(folder) / "lib" / "stayput" / "of_old.py"
                stale.parent.mkdir(parents=True)
                stale.touch()
                self.assertEqual(self.build(BUILD, folder)[0], 0)
                self.assertTrue((stale.parent / "torch.py").exists())
                self.assertFalse(stale.exists())

        def test_a_copy_of_the_folder_alone_says_that_it_cannot_be_built(self):
            with tempfile.TemporaryDirectory() as folder:
                source = shutil.copytree(TOP / "python", folder + "/copy")
                status, output = self.build(BUILD, folder, source)
            self.assertEqual((status, "no checkout of stayput" in output), (1, True))
            self.assertNotIn("Traceback", output)


class Layout(Case):
    PRELOAD = None
    HEADER = TOP / "include" / "stayput.h"

    def compiled(self, lines):
        source = '#include <stdio.h>\n#include "stayput.h"\nint main(void) {\n'
        source += (
            "".join(f'printf("%lld ", (long long)({line}));\n' for line in lines) + "}\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            program = folder + "/layout"
            subprocess.run(
                [CC, "-x", "c", "-", "-o", program, f"-I{self.HEADER.parent}"],
                input=source.encode(),
                check=True,
            )
            return list(map(int, subprocess.check_output([program]).split()))

    def test_structs_are_laid_out_as_the_compiler_does(self):
        from stayput import _library

        structs = {
            "stayput_options": _library.Options,
            "stayput_device_report": _library.DeviceReport,
            "stayput_report": _library.Report,
            "stayput_info": _library.Info,
            "stayput_range": _library.Range,
            "stayput_region_info": _library.RegionInfo,
        }
        lines, ours = [], []
        for name, struct in structs.items():
            lines.append(f"sizeof(struct {name})")
            ours.append(ctypes.sizeof(struct))
            for field, _ in struct._fields_:
                lines.append(f"offsetof(struct {name}, {field})")
                lines.append(f"sizeof(((struct {name} *)0)->{field})")
                ours += [getattr(struct, field).offset, getattr(struct, field).size]
        self.assertEqual(dict(zip(lines, ours)), dict(zip(lines, self.compiled(lines))))

    def test_numbers_are_those_of_the_header(self):
        from stayput import _api, _change, _errors, _library

        names = {
            "Invalid": "INVALID",
            "NotFound": "NOT_FOUND",
            "Busy": "BUSY",
            "OutOfDeviceMemory": "DEVICE_MEMORY",
            "OutOfHostMemory": "HOST_MEMORY",
            "DriverError": "DRIVER",
            "IOFailure": "IO",
            "Unsupported": "UNSUPPORTED",
            "Corrupt": "CORRUPT",
        }
        ours = {
            f"STAYPUT_ERR_{c}": getattr(_errors, name).code for name, c in names.items()
        }
        ours["STAYPUT_POLICY_DEFAULT"] = _api.policy_code("default")
        for policy in ("host", "discard", "zero", "keep"):
            ours["STAYPUT_" + policy.upper()] = _api.policy_code(policy)
        for code, state in _api._STATES.items():
            ours["STAYPUT_" + state.upper()] = code
        for code, state in _change._CHANGES.items():
            ours["STAYPUT_" + state.upper()] = code
        ours["STAYPUT_TAG_SIZE"] = _library.TAG_SIZE
        ours["STAYPUT_REPORT_DEVICES"] = _library.REPORT_DEVICES
        self.assertEqual(ours, dict(zip(ours, self.compiled(list(ours)))))
        text = self.HEADER.read_text()
        self.assertEqual(
            sorted(re.findall(r"STAYPUT_ERR_\w+(?= = )", text)),
            sorted(n for n in ours if n.startswith("STAYPUT_ERR_")),
        )

    def test_python_shows_every_field(self):
        from stayput import _api, _change, _library, _report

        for struct, shown in (
            (_library.DeviceReport, _report.DeviceReport),
            (_library.Info, _api.Info),
            (_library.Range, _change.Range),
            (_library.RegionInfo, _api.Region),
        ):
            fields = [
                name
                for name, _ in struct._fields_
                if name not in ("struct_size", "reserved")
            ]
            self.assertEqual(fields, list(shown.__dataclass_fields__))


class OtherVersion(Case):
    """A process whose library is of another version than the package."""

    def test_another_version_is_refused(self):
        from stayput import _library

        _library.__version__ = "9.9.9"
        _library._SIGNATURES["stayput_of_later"] = (ctypes.c_int, [])
        with self.assertRaisesRegex(stayput.Unsupported, "9.9.9"):
            stayput.regions()
