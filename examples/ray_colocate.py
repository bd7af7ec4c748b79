# SPDX-License-Identifier: Apache-2.0
"""rl_colocate.py on any number of GPUs and machines, over Ray actors.

A trainer and an engine share each GPU. Ray places the actors and preloads the library into
them; the trainers average their gradients by NCCL. Nothing of the pauses is distributed:
every actor puts its own memory to sleep. On each machine the package stayput has to be
installed at the same path.

    python3 examples/ray_colocate.py --gpus 8 --gib 100 [--address auto]

One sees of the first GPU what rl_colocate.py shows of its own. The exit status is 0 when
contents were right on every GPU.
"""

import importlib
import os
import socket
import sys

import ray
import stayput
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rl_colocate import arguments, prepare
from support import card

HERE = os.path.dirname(os.path.abspath(__file__))


@ray.remote(num_cpus=1, num_gpus=0.5)
class Actor:
    """An object of a class of the examples, in a preloaded process."""

    def start(self, module, name, options):
        self.thing = getattr(importlib.import_module(module), name)(**options)

    def call(self, method, args):
        return getattr(self.thing, method)(*args)

    def card_gib(self):
        return card()[1]

    def address(self):
        """Where the process group of the trainers can meet."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"


class RayGroup:
    """As support.Group: one actor in each bundle of the placement group, which is a GPU."""

    def __init__(self, module, name, bundles, count):
        self.kind = module, name
        self.actors = [
            Actor.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    bundles, placement_group_bundle_index=index
                ),
                runtime_env={
                    "env_vars": stayput.preload_env(env={"NCCL_GRAPH_REGISTER": "0"})
                },
            ).remote()
            for index in range(count)
        ]

    def start(self, options):
        pairs = zip(self.actors, options)
        ray.get([actor.start.remote(*self.kind, each) for actor, each in pairs])

    def all(self, method, *args):
        return ray.get([actor.call.remote(method, args) for actor in self.actors])

    def each(self, method, values):
        pairs = zip(self.actors, values)
        return ray.get([actor.call.remote(method, (value,)) for actor, value in pairs])


def main():
    parser = arguments(__doc__)
    parser.add_argument("--gpus", type=int, help="how many GPUs (default: all of them)")
    parser.add_argument("--address", help="of a running cluster (default: one made here)")
    args = parser.parse_args()
    ray.init(address=args.address, runtime_env={"working_dir": HERE}, log_to_driver=True)
    count = args.gpus or int(ray.cluster_resources().get("GPU", 0))
    if count == 0:
        sys.exit("Ray knows of no GPU")
    bundles = placement_group([{"CPU": 2, "GPU": 1}] * count)
    ray.get(bundles.ready())
    engines = RayGroup("engine", "Engine", bundles, count)
    trainers = RayGroup("trainer", "Trainer", bundles, count)
    first = trainers.actors[0]
    gib = args.gib or 0.75 * ray.get(first.card_gib.remote())
    meeting = ray.get(first.address.remote())
    ranks = [{"rank": i, "world": count, "init_method": meeting} for i in range(count)]
    turns = prepare(engines, trainers, gib, ranks)
    for number in range(1, args.rounds + 1):
        turns.round(number, args.steps)
    status = turns.finish("ray_colocate")
    ray.shutdown()
    return status


if __name__ == "__main__":
    sys.exit(main())
