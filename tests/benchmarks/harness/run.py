"""Runs a subset interleaved, and prints medians and ratios.

python run.py --systems limit,zephon_,grain_ --workloads w1,w2 [--repeat 3] [--secs 5] [--out FILE.jsonl]
python run.py --jobs "zephon_:thread:2 grain_:process:2 limit:process:2" --workloads w2
A job is SYSTEM:MODE:PAR[:k=v,k=v]. Without --jobs, every mode x parallelism in the system's MODES.
New system: systems/NAME.py with MODES = {mode: [par, ...]} and w1(mode, par, **opts) -> (iterable of batches,
count(batch) -> (samples, tokens)), ... ; a workload that it lacks is skipped. PYTHON for another venv: --python NAME=PATH.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


def watch(pid, out, stop):
    """Peak RSS (sum over the tree; shared pages count once per process) and peak PSS, in bytes, of the moments in which this
    thread gets a turn; the worker itself adds up the peaks of its processes."""
    import psutil

    n = 0
    while not stop.is_set():
        rss = pss = 0
        try:
            p = psutil.Process(pid)
            for q in [p] + p.children(recursive=True):
                try:
                    rss += q.memory_info().rss
                    if n % 4 == 0:
                        for line in open(f"/proc/{q.pid}/smaps_rollup"):
                            if line.startswith("Pss:"):
                                pss += int(line.split()[1]) * 1024
                                break
                except (psutil.Error, OSError):
                    pass
        except psutil.Error:
            return
        out["rss"] = max(out["rss"], rss)
        out["pss"] = max(out["pss"], pss)
        n += 1
        stop.wait(0.25)


def one(job, w, a):
    s, mode, par, opts = job
    py = dict(x.split("=", 1) for x in a.python).get(s, sys.executable)
    cmd = [py, os.path.join(HERE, "worker.py"), s, mode, str(par), w, "--warm", str(a.warm), "--secs", str(a.secs)]
    for o in opts:
        cmd += ["--opt", o]
    p = subprocess.Popen(
        cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE, start_new_session=True
    )
    mem, stop = {"rss": 0, "pss": 0}, threading.Event()
    t = threading.Thread(target=watch, args=(p.pid, mem, stop), daemon=True)
    t.start()
    try:
        out, err = p.communicate(timeout=a.timeout)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, 9)  # the group of the process started above
        out, err = p.communicate()
        err += "\nTIMEOUT"
    stop.set()
    t.join()
    r = next((json.loads(line[5:]) for line in out.splitlines() if line.startswith("JSON ")), None) or {
        "system": s,
        "mode": mode,
        "par": par,
        "workload": w,
        "opt": list(opts),
        "error": "no result: " + err[-300:],
    }
    r["peak_rss_mb"], r["peak_pss_mb"] = r.get("peak_rss", mem["rss"]) >> 20, mem["pss"] >> 20
    if "error" in r or a.verbose:
        r["stderr"] = err[-1500:]
    return r


def table(rs, w):
    rs = [r for r in rs if r["workload"] == w]
    if not rs:
        return ""
    key = "samples_s" if w == "w1" else "tokens_s"
    g = {}
    for r in rs:
        g.setdefault((r["system"], r["mode"], r["par"], ",".join(r["opt"])), []).append(r)

    def med(rr, k):
        return statistics.median([r[k] for r in rr if k in r]) if any(k in r for r in rr) else float("nan")

    # the limit: best of loop, threads and processes delivering to the main process; for W1 in-memory slicing says nothing,
    # so there it is the plain pyarrow loop
    lim = [
        med(rr, key) for k, rr in g.items() if k[0] == "limit" and (k[1] == "inline" if w == "w1" else k[1] != "noipc")
    ]
    zep = [med(rr, key) for k, rr in g.items() if k[0] == "zephon_"]

    def clean(v):
        return max([x for x in v if x == x], default=float("nan"))

    lim, zep = clean(lim), clean(zep)
    out = [
        f"### {w}",
        "",
        "| system | mode | par | options | n | samples/s | tokens/s | min..max | of limit | of zephon best | TTFB s | +import s | peak RSS MB | PSS MB | cores | others' cores | errors |",
        "|" + "---|" * 17,
    ]
    for k, rr in sorted(g.items(), key=lambda kv: -(med(kv[1], key) if med(kv[1], key) == med(kv[1], key) else -1)):
        v = [r[key] for r in rr if key in r]
        err = [r["error"] for r in rr if "error" in r]
        m = med(rr, key)
        out.append(
            f"| {k[0].rstrip('_')} | {k[1]} | {k[2]} | {k[3]} | {len(v)} | {med(rr, 'samples_s'):,.0f} | {med(rr, 'tokens_s'):,.0f} | "
            + (f"{min(v):,.0f}..{max(v):,.0f}" if v else "")
            + f" | {m / lim:.2f} | {m / zep:.2f} | {med(rr, 'ttfb_s'):.2f} | {med(rr, 'import_s'):.2f} | {med(rr, 'peak_rss_mb'):.0f} | {med(rr, 'peak_pss_mb'):.0f} | {med(rr, 'cpu_util'):.2f} | {med(rr, 'other_cores'):.2f} | {err[0][:80] if err else ''} |"
        )
    return "\n".join(out) + "\n"


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--systems", default="")
    ap.add_argument("--jobs", default="")
    ap.add_argument("--workloads", default="w1,w2,w3,w4")
    ap.add_argument("--repeat", type=int, default=3)
    ap.add_argument("--warm", type=float, default=2)
    ap.add_argument("--secs", type=float, default=5)
    ap.add_argument("--timeout", type=float, default=60)
    ap.add_argument("--out", default="")
    ap.add_argument("--verbose", action="store_true")
    ap.add_argument("--retry", type=int, default=2)
    ap.add_argument("--max-other", type=float, default=0.25)
    ap.add_argument("--python", action="append", default=[])
    ap.add_argument("--table", nargs="*", help="only print tables of these jsonl files")
    a = ap.parse_args()
    ws = a.workloads.split(",")
    if a.table:
        rs = [json.loads(line) for f in a.table for line in open(f)]
        for w in ws:
            print(table(rs, w))
        return
    jobs = []
    for j in a.jobs.split():
        s, mode, par, *o = j.split(":", 3)
        jobs.append((s, mode, int(par), tuple(x for x in (o[0].split(",") if o else []) if x)))
    for s in filter(None, a.systems.split(",")):
        for mode, pars in importlib.import_module(f"systems.{s}").MODES.items():
            jobs += [(s, mode, p, ()) for p in pars]
    has = {s: importlib.import_module(f"systems.{s}") for s in {j[0] for j in jobs}}
    rs = []
    for rep in range(a.repeat):
        for w in ws:
            for j in jobs:
                if not hasattr(has[j[0]], w) or w not in getattr(has[j[0]], "ONLY", {}).get(j[1], ws):
                    continue
                for attempt in range(1 + a.retry):  # again when somebody else used the machine
                    r = one(j, w, a)
                    if r.get("other_cores", 0) <= a.max_other:
                        break
                    r["contended"] = True
                r["rep"] = rep
                rs.append(r)
                if a.out:
                    open(a.out, "a").write(json.dumps(r) + "\n")
                print(
                    f"{rep} {w} {j[0]}:{j[1]}:{j[2]}:{','.join(j[3])} "
                    + (
                        r["error"][:160]
                        if "error" in r
                        else f"{r['samples_s']:,.0f} samples/s {r['tokens_s']:,.0f} tok/s ttfb {r['ttfb_s']} cores {r['cpu_util']} other {r['other_cores']} rss {r['peak_rss_mb']}"
                    ),
                    flush=True,
                )
    print()
    for w in ws:
        print(table(rs, w))


if __name__ == "__main__":
    main()
