#!/usr/bin/env python3
"""Chooses what `make test` fuzzes: a line "TARGET SECONDS" each, 30 seconds in all.

Half of the time goes to targets in folders that the last ten commits touched, half to the others in turn. Where the turn
stands is told by the commit's hash: a commit always has the same plan, and every target comes up within some commits. The
seeds of every target are replayed by ctest (corpus-TARGET) in any case.
"""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOTAL_SECONDS, SECONDS_EACH, N_COMMITS = 30, 5, 10


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout.split()


def in_turn(targets, n, turn):
    """n of the targets, beginning at a place that `turn` tells."""
    return [targets[(turn + i) % len(targets)] for i in range(min(n, len(targets)))]


def plan(targets, touched, turn):
    """[target] to fuzz of {target: folder}, given the set of touched folders."""
    n = TOTAL_SECONDS // SECONDS_EACH
    near = sorted(t for t, folder in targets.items() if folder in touched)
    far = sorted(t for t in targets if t not in near)
    n_near = min(len(near), max(n // 2, n - len(far)))
    return in_turn(near, n_near, turn) + in_turn(far, n - n_near, turn)


def main():
    files = sorted((ROOT / "src").glob("**/*_fuzz.cc"))
    targets = {f.stem.removesuffix("_fuzz"): f.parent.relative_to(ROOT).as_posix() for f in files}
    touched = {pathlib.PurePosixPath(f).parent.as_posix() for f in git("log", f"-{N_COMMITS}", "--format=", "--name-only")}
    turn = int(git("rev-parse", "HEAD")[0], 16)
    for target in plan(targets, touched, turn):
        print(target, SECONDS_EACH)


if __name__ == "__main__":
    main()
