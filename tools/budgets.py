#!/usr/bin/env python3
"""Holds the CPU seconds of `make test` against tools/budgets.json.

  budgets.py job             compiles and runs tools/budgets/fixed_job.cc; prints the CPU seconds that it cost
  budgets.py report FOLDER   FOLDER/stages.tsv (stage, CPU s, wall s), FOLDER/jobs.txt (a line for each `job`), the
                             builds' units.txt: prints a table, and appends what is over its budget to FOLDER/steps.txt

Processors differ, and a busy sibling core costs up to half: every figure is divided by the time of the fixed job, as it was
measured in the same run, over the time in budgets.json. Above 110 % of a budget there is a loud line, above 150 % a
failure. Raising a budget is a line of a diff with its reason.
"""
import json
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUDGETS = json.loads((ROOT / "tools/budgets.json").read_text())
LOUD, FAILED = 1.1, 1.5


def fixed_job():
    """CPU seconds of the fixed job, user and system, compiler and loop together."""
    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime
    begin = spent()
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/fixed_job"
        subprocess.run(["g++", "-std=c++20", "-O2", "-o", program, str(ROOT / "tools/budgets/fixed_job.cc")], check=True)
        subprocess.run([program], check=True, stdout=subprocess.DEVNULL)
    return spent() - begin


def slowness(folder):
    """How many times as long as in budgets.json the fixed job took in the run whose results are in `folder`."""
    file = folder / "jobs.txt"
    seconds = [float(s) for s in file.read_text().split()] if file.exists() else []
    return statistics.mean(seconds) / BUDGETS["fixed_job_s"] if seconds else 1.0


def over(name, share):
    """A line for a figure that is `share` of its budget, or none."""
    if share > FAILED:
        return f"FAILED: {name}: {share:.0%} of its budget (tools/budgets.json)"
    if share > LOUD:
        return f"OVER BUDGET: {name}: {share:.0%} of its budget (tools/budgets.json); above {FAILED:.0%} this fails"
    return None


def units_of(build):
    """{object: (is a batch, CPU s, GB)} of the units of a build: of each its last compilation."""
    units = {}
    file = build / "units.txt"
    for line in file.read_text().splitlines() if file.exists() else []:
        match = re.match(r"([\d.]+) ([\d.]+) (\d+) .* -o (\S+\.o) ", line)
        if match:
            units[match[4]] = ("/Unity/" in match[4], float(match[1]) + float(match[2]), int(match[3]) / 1e6)
    return units


def short(name):
    return re.sub(r"CMakeFiles/[^/]*\.dir/", "", name).removesuffix(".o")


def report(folder):
    slow = slowness(folder)
    lines = []
    budgets = BUDGETS["stages_cpu_s"]
    print(f"the fixed job took {slow * BUDGETS['fixed_job_s']:.2f} CPU s; budgets are multiplied by {slow:.2f}")
    print(f"{'stage':<14}{'CPU s':>8}{'budget':>8}{'wall s':>8}")
    total, allowed = [0.0, 0.0], 0.0
    for stage, cpu, wall in (line.split("\t") for line in (folder / "stages.tsv").read_text().splitlines()):
        total = [total[0] + float(cpu), total[1] + float(wall)]
        budget = budgets.get(stage)
        allowed += budget or 0
        print(f"{stage:<14}{float(cpu):>8.0f}{'' if budget is None else f'{budget * slow:.0f}':>8}{float(wall):>8.0f}")
        if budget is not None:
            lines.append(over(f"CPU seconds of {stage}", float(cpu) / slow / budget))
    print(f"{'sum':<14}{total[0]:>8.0f}{allowed * slow:>8.0f}{total[1]:>8.0f}")
    limits = BUDGETS["units"]
    for build in sorted(ROOT.glob("build/*/units.txt")):
        units = units_of(build.parent)
        heaviest = sorted(units, key=lambda u: -units[u][1])[:5]
        print(f"heaviest units of {build.parent.name}: "
              + ", ".join(f"{short(u)} {units[u][1]:.1f} s {units[u][2]:.2f} GB" for u in heaviest))
        for unit, (is_batch, cpu, gb) in sorted(units.items()):
            limit = limits["exceptions"].get(short(unit), limits["batch" if is_batch else "file"])
            lines.append(over(f"{build.parent.name}: compiling {short(unit)}, {cpu:.0f} CPU s", cpu / slow / limit["cpu_s"]))
            lines.append(over(f"{build.parent.name}: compiling {short(unit)}, {gb:.2f} GB", gb / limit["gb"]))
    lines = [line for line in lines if line]
    print("\n".join(lines) if lines else "ok: within the budgets of CPU seconds and memory")
    with open(folder / "steps.txt", "a") as steps:
        steps.write("ok: budgets\n" + "".join(f"{line}\n" for line in lines if line.startswith("FAILED")))


if __name__ == "__main__":
    if sys.argv[1:] == ["job"]:
        print(f"{fixed_job():.2f}")
    elif len(sys.argv) == 3 and sys.argv[1] == "report":
        report(pathlib.Path(sys.argv[2]))
    else:
        sys.exit(__doc__)
