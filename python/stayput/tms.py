# SPDX-License-Identifier: Apache-2.0
"""Puts libstayput-tms.so in the place of torch_memory_saver's own libraries, and back.

    python -m stayput.tms status | install | uninstall [--package-dir DIR] [--dry-run]

Its Python package stays as it is. Each original is kept beside, with its checksum.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "torch_memory_saver"
KEPT = ".stayput-original"
CHECKSUM = ".stayput-original.sha256"
NAMES = re.compile(r"torch_memory_saver_(cpp|hook_mode_(preload|torch)(_cu\d+)?)\.[^/]*so")

_HERE = Path(__file__).resolve().parent


class Refused(Exception):
    """What was found is not what can be dealt with; nothing has been changed."""


def library() -> Path:
    """libstayput-tms.so: what the package carries, or in a checkout what make has built."""
    places = [_HERE / "lib", _HERE.parent.parent / "build"]
    for place in places:
        found = place / "libstayput-tms.so"
        if found.exists():
            return found
    raise Refused(
        f"libstayput-tms.so is neither in {places[0]} nor in {places[1]}: install the "
        "package from its wheel, run make, or name it with --library"
    )


def package_folder(given: str | None) -> Path:
    """The folder of the Python package, without importing it."""
    if given is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise Refused(
                f"{PACKAGE} is not installed for {sys.executable}; name its folder with "
                "--package-dir"
            )
        return Path(spec.submodule_search_locations[0])
    for folder in (Path(given), Path(given) / PACKAGE):
        if folder.name == PACKAGE and (folder / "__init__.py").exists():
            return folder.absolute()
    raise Refused(f"{given} is not the folder of {PACKAGE}, nor is one in it")


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_ours(path: Path) -> bool:
    return b"\0stayput_version\0" in path.read_bytes()


@dataclass
class Place:
    """One library of the package."""

    path: Path

    @property
    def kept(self) -> Path:
        return self.path.with_name(self.path.name + KEPT)

    @property
    def record(self) -> Path:
        return self.path.with_name(self.path.name + CHECKSUM)

    def state(self) -> str:
        """original, ours, or a sentence on what is wrong."""
        if not self.path.exists():
            return f"{self.path} is missing, though {self.kept.name} is beside it"
        if not is_ours(self.path):
            # Both, and the same: an installation that was cut short.
            if not self.kept.exists() or checksum(self.kept) == checksum(self.path):
                return "original"
            return (
                f"{self.path} is not ours, though {self.kept.name} is beside it: "
                f"{PACKAGE} was installed anew since. To go on with what is there now, "
                f"remove {self.kept} and {self.record.name}"
            )
        if not self.kept.exists():
            return f"{self.path} is ours and its original is gone: reinstall {PACKAGE}"
        if not self.record.exists() or self.record.read_text().split()[:1] != [
            checksum(self.kept)
        ]:
            return (
                f"{self.kept} is not what was kept: {self.record.name} has another checksum"
            )
        return "ours"

    def put(self, source: Path) -> None:
        if not self.kept.exists():
            self._keep()
        self.record.write_text(f"{checksum(self.kept)}  {self.kept.name}\n")
        _replace(self.path, source)

    def _keep(self) -> None:
        try:
            os.link(self.path, self.kept, follow_symlinks=False)
        except FileExistsError:
            raise  # somebody else's: it has the original, and self.path may be ours by now
        except OSError:
            # No hard links here.
            with _beside(self.kept) as name:
                os.unlink(name)
                shutil.copy2(self.path, name, follow_symlinks=False)

    def restore(self) -> None:
        os.replace(self.kept, self.path)
        # A name that is replaced by one of the same file leaves both.
        self.kept.unlink(missing_ok=True)
        self.record.unlink(missing_ok=True)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[str]:
    """The name of an empty file that takes the place of `path` at the end."""
    handle, name = tempfile.mkstemp(prefix=".stayput-", dir=path.parent)
    os.close(handle)
    try:
        yield name
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _replace(path: Path, source: Path) -> None:
    """A new file under the old name: who has the old one open or mapped keeps it."""
    with _beside(path) as name:
        shutil.copyfile(source, name)
        os.chmod(name, 0o755)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One at a time: ranks of a job may all begin with an installation."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not on every file system
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def places(folder: Path) -> list[Place]:
    """The libraries, in the package's folder or beside it, where its wheels put them."""
    found = {
        path.with_name(path.name[: -len(KEPT)]) if path.name.endswith(KEPT) else path
        for near in (folder, folder.parent)
        for path in near.iterdir()
        if NAMES.fullmatch(path.name) or NAMES.fullmatch(path.name[: -len(KEPT)])
    }
    if not found:
        raise Refused(f"no library of {PACKAGE} is in {folder} or beside it")
    return [Place(path) for path in sorted(found)]


def _check_original(place: Place) -> None:
    data = place.path.read_bytes()
    if not data.startswith(b"\x7fELF"):
        raise Refused(f"{place.path} is no library")
    if b"\0tms_pause\0" not in data or b"\0tms_set_current_tag\0" not in data:
        raise Refused(
            f"{place.path} lacks tms_pause or tms_set_current_tag: only versions of "
            f"{PACKAGE} from 0.0.8 on, for CUDA, can be served"
        )


def _checked(folder: Path) -> list[tuple[Place, str]]:
    states = [(place, place.state()) for place in places(folder)]
    wrong = [state for _, state in states if state not in ("original", "ours")]
    if wrong:
        raise Refused("\n".join(wrong))
    return states


def install(folder: Path, source: Path, dry_run: bool) -> None:
    if not is_ours(source) or b"\0tms_pause\0" not in source.read_bytes():
        raise Refused(f"{source} is not libstayput-tms.so")
    states = _checked(folder)
    for place, state in states:
        if state == "original":
            _check_original(place)
    for place, state in states:
        if state == "ours" and checksum(place.path) == checksum(source):
            print(f"{place.path}: is libstayput-tms.so already")
            continue
        if not dry_run:
            place.put(source)
        was = f"original kept as {place.kept.name}" if state == "original" else "renewed"
        print(f"{place.path}: {_is(dry_run)} libstayput-tms.so, {was}")


def uninstall(folder: Path, dry_run: bool) -> None:
    for place, state in _checked(folder):
        if state == "original" and not place.kept.exists():
            print(f"{place.path}: is the original")
            continue
        if not dry_run:
            place.restore()
        print(f"{place.path}: {_is(dry_run)} the original again")


def _is(dry_run: bool) -> str:
    return "would be" if dry_run else "is"


def status(folder: Path, given: Path | None) -> int:
    """0 when every library is ours."""
    source = given
    if source is None:
        with contextlib.suppress(Refused):
            source = library()
    print(f"package {folder}")
    states = [(place, place.state()) for place in places(folder)]
    for place, state in states:
        if state == "ours" and source and checksum(place.path) != checksum(source):
            state = f"ours, of another build than {source}"
        print(f"  {place.path.name}: {state}")
    return 0 if all(state.startswith("ours") for _, state in states) else 1


_EPILOG = f"""\
`install` puts copies of libstayput-tms.so in the place of every library of the package, in
its folder or beside it, whatever hook mode or CUDA version it is for; `uninstall` puts the
originals back, which were kept beside under the suffix {KEPT}.
Reinstalling {PACKAGE} with pip undoes `install` too, and leaves the kept files behind.
`status` ends with 0 when all are ours, else with 1. Every command ends with 2 when it
refuses what it found, having changed nothing, or fails on its way: it can be repeated then.

Programs that set LD_PRELOAD themselves and only use the hook mode "preload" need no
installation: the package accepts any library with {PACKAGE} in its path. After
`make install` that is

    LD_PRELOAD=PREFIX/lib/stayput/{PACKAGE}/libstayput-tms.so

It has to be the only entry of LD_PRELOAD with {PACKAGE} in its path. SGLang, and whatever
else calls configure_subprocess(), adds the package's own library: use `install` there.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m stayput.tms",
        description=f"Serve an installed {PACKAGE} with libstayput-tms.so.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("status", "install", "uninstall"))
    parser.add_argument(
        "--package-dir",
        metavar="DIR",
        help=f"folder of the package {PACKAGE}, or what it is installed in; default: of "
        "this Python",
    )
    parser.add_argument(
        "--library", metavar="FILE", type=Path, help="the libstayput-tms.so to install"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and do nothing"
    )
    args = parser.parse_args(arguments)
    try:
        folder = package_folder(args.package_dir)
        with _alone(folder):
            if args.command == "uninstall":
                uninstall(folder, args.dry_run)
                return 0
            if args.command == "install":
                install(folder, args.library or library(), args.dry_run)
                return 0
            return status(folder, args.library)
    except Refused as error:
        print(f"refused: {error}", file=sys.stderr)
    except OSError as error:
        print(f"failed: {error}; what is done already stays done", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
