"""Ranks of a world in threads of this process, which agree on the end of the data by waiting for each other."""

from __future__ import annotations

import json
import threading

from runs import plain

from zephon_nodes import merge_states

SECONDS = 5


class World:
    """``agree`` for each rank, as a collective: nobody goes on before all have asked."""

    def __init__(self, size):
        self.said, self.asked = [0] * size, [0] * size
        self.barrier = threading.Barrier(size)

    def agree(self, rank):
        def agreed(rounds, largest):
            self.said[rank] = rounds
            self.asked[rank] += 1
            self.barrier.wait(SECONDS)
            answer = (max if largest else min)(self.said)
            self.barrier.wait(SECONDS)
            return answer

        return agreed

    def run(self, ranks):
        """The results of one function per rank, each in a thread; an error of one is raised here."""
        out, errors = [None] * len(ranks), []

        def work(rank):
            try:
                out[rank] = ranks[rank](self.agree(rank))
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        assert len(set(self.asked)) == 1, f"ranks asked each other {self.asked} times, so one was left waiting"
        return out


def run_world(make, world, state=None, stop=None, at_end="pad"):
    """What each rank gives, as (lane, output) pairs, and the merged state. ``stop``: outputs a rank, None for all."""

    def rank_of(rank):
        def go(agree):
            out = []
            with make().options(rank=rank, world_size=world, at_end=at_end, agree=agree, runner="inline") as pipeline:
                if state is not None:
                    pipeline.load_state_dict(json.loads(json.dumps(state)))
                iterator = iter(pipeline)
                while stop is None or len(out) < stop:
                    output = next(iterator, None)
                    if output is None:
                        break
                    out.append((pipeline.loader.lane, plain(output)))
                return out, json.loads(json.dumps(pipeline.state_dict()))

        return go

    ranks = World(world).run([rank_of(rank) for rank in range(world)])
    return [out for out, _ in ranks], merge_states([after for _, after in ranks])
