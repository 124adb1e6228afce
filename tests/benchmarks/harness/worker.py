"""One system x mode x parallelism x workload in this process; prints one JSON line.
python worker.py SYSTEM MODE PAR WORKLOAD [--warm S] [--secs S] [--opt k=v ...]"""

import time

T0 = time.perf_counter()
import argparse
import contextlib
import importlib
import json
import os
import sys
import traceback

import common  # noqa: F401 - sets threads before numpy is imported


def tree():
    import psutil

    me = psutil.Process()
    return [me] + me.children(recursive=True)


def cpu():
    import psutil

    s = 0.0
    for p in tree():
        with contextlib.suppress(psutil.Error):
            s += sum(p.cpu_times()[:4])
    return s


def busy():
    """CPU seconds that the whole machine has used."""
    v = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def peak():
    """The sum of the largest RSS that each process of the tree has had, in bytes. Nobody has to get a turn to look."""
    total = 0
    for p in tree():
        with contextlib.suppress(OSError), open(f"/proc/{p.pid}/status") as status:
            total += sum(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))
    return total


def finish(code):
    import psutil

    sys.stdout.flush()
    for p in tree()[1:]:  # only what this process started
        with contextlib.suppress(psutil.Error):
            p.kill()
    os._exit(code)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("system")
    ap.add_argument("mode")
    ap.add_argument("par", type=int)
    ap.add_argument("workload")
    ap.add_argument("--warm", type=float, default=2)
    ap.add_argument("--secs", type=float, default=5)
    ap.add_argument("--max-batches", type=int, default=0)
    ap.add_argument("--opt", action="append", default=[])
    a = ap.parse_args()
    # own autogroup first: neighbours at nice 15 otherwise still get a fair half of the machine
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as group:
        group.write(os.environ.get("BENCH_AUTOGROUP_NICE", "-10"))
    res = {"system": a.system, "mode": a.mode, "par": a.par, "workload": a.workload, "opt": a.opt}
    try:
        mod = importlib.import_module(f"systems.{a.system}")
        if hasattr(mod, "imports"):
            mod.imports()
        t_imp = time.perf_counter()
        it, count = getattr(mod, a.workload)(a.mode, a.par, **dict(o.split("=", 1) for o in a.opt))
        it = iter(it)
        b = next(it)
        t_first = time.perf_counter()
        first = count(b)
        res.update(import_s=round(t_imp - T0, 3), ttfb_s=round(t_first - t_imp, 3), first_batch=first)
        while time.perf_counter() - t_first < a.warm:
            next(it)
        c0, m0, t0, n, tok, nb = cpu(), busy(), time.perf_counter(), 0, 0, 0
        while True:
            s, k = count(next(it))
            n += s
            tok += k
            nb += 1
            t1 = time.perf_counter()
            if t1 - t0 >= a.secs or (a.max_batches and nb >= a.max_batches):
                break
        m1, c1 = busy(), cpu()
        dt = t1 - t0
        res.update(
            secs=round(dt, 2),
            batches=nb,
            samples_s=n / dt,
            tokens_s=tok / dt,
            cpu_s=round(c1 - c0, 2),
            cpu_util=round((c1 - c0) / dt, 2),
            other_cores=round(((m1 - m0) - (c1 - c0)) / dt, 2),
            procs=len(tree()),
            peak_rss=peak(),
        )
    except BaseException as e:
        traceback.print_exc()
        res["error"] = f"{type(e).__name__}: {e}"[:400]
        print("JSON " + json.dumps(res))
        finish(1)
    print("JSON " + json.dumps(res))
    finish(0)


if __name__ == "__main__":  # spawn-based workers import this file again
    main()
