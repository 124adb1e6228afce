import threading

from zephon_nodes.store_counters import StoreCounters


def test_amounts_are_summed():
    counters = StoreCounters()
    for n in range(2000):
        counters.add(nbytes=n, waiting=0.5)
    counters.add(hits=1)
    report = counters.report()
    assert (report.nbytes, report.waiting, report.hits, report.evicted) == (1999 * 1000, 1000.0, 1, 0)
    assert counters.report() == report


def test_nothing_is_lost_between_threads():
    counters = StoreCounters()
    barrier = threading.Barrier(8)

    def work():
        barrier.wait()
        for n in range(3000):
            counters.add(nbytes=1)
            if n % 500 == 0:
                counters.report()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.report().nbytes == 24_000
