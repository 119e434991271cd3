"""Three Ray nodes on this machine, and the application from `deploy/ray` on them."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import ray
import yaml
from conftest import DEPLOY
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.handle import DeploymentHandle
from server import free_ports, wait_until

#: What Serve would do over minutes, it does over seconds. Requests over HTTP go to all nodes.
ENVIRONMENT = {
    "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
}
#: A process that doesn't answer may be slow; one whose port is closed is dead after 3 s.
SYSTEM = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
    "enable_worker_prestart": False,
}
#: Processors are only counted: the nodes share those of the machine.
NODE = {"num_cpus": 4, "object_store_memory": 80_000_000}
#: How long Ray may take for one step, such as a new replica.
SECONDS_MAX = 120


class Nodes:
    """A head and two more nodes, as processes on this machine."""

    def __init__(self) -> None:
        """Starts them, and connects this process to the head."""
        os.environ.update(ENVIRONMENT)
        head = {**NODE, "include_dashboard": False, "_system_config": SYSTEM}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.http_port = free_ports(1)[0]
        self.complete()
        ray.init(address=self.cluster.address, log_to_driver=False)

    def complete(self) -> None:
        """Starts the nodes that are missing."""
        while len(self.cluster.list_all_nodes()) < 3:
            self.cluster.add_node(**NODE)

    def kill(self, node_id: str) -> None:
        """Ends all processes of a node at once, like a machine that loses power."""
        [node] = [one for one in self.cluster.worker_nodes if one.node_id == node_id]
        [raylet] = node.all_processes["raylet"]
        for number in [raylet.process.pid, *children(raylet.process.pid)]:
            os.kill(number, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        """Ends the application and all nodes."""
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


def children(number: int) -> list[int]:
    """The processes that a process has started, directly or indirectly."""
    tasks = pathlib.Path(f"/proc/{number}/task").glob("*/children")
    direct = [int(child) for task in tasks for child in task.read_text().split()]
    return direct + [one for child in direct for one in children(child)]


class Application:
    """The application, as `serve run` deploys it from the file in `deploy/ray`."""

    def __init__(self, nodes: Nodes, folder: pathlib.Path) -> None:
        """Deploys nothing yet."""
        self.nodes = nodes
        self.folder = folder

    def deploy(self, arguments: dict[str, Any], **settings: Any) -> DeploymentHandle:
        """Deploys with these deployment settings instead of the file's, and waits."""
        self.submit(arguments, **settings)
        self.wait_for("RUNNING")
        return serve.get_app_handle("galatea")

    def submit(self, arguments: dict[str, Any], **settings: Any) -> None:
        """Tells Serve to deploy it."""
        document = yaml.safe_load((DEPLOY / "ray/serve.yaml").read_text())
        # The nodes share one address.
        document["proxy_location"] = "HeadOnly"
        document["http_options"] = {"host": "127.0.0.1", "port": self.nodes.http_port}
        [application] = document["applications"]
        application["args"].update(arguments)
        [deployment] = application["deployments"]
        deployment["ray_actor_options"]["num_cpus"] = 1
        if "num_replicas" in settings:
            del deployment["autoscaling_config"]
        elif "autoscaling_config" in settings:
            settings["autoscaling_config"] = {
                **deployment["autoscaling_config"], **settings["autoscaling_config"]
            }
        deployment.update(settings)
        file = self.folder / "serve.yaml"
        file.write_text(yaml.safe_dump(document))
        program = pathlib.Path(sys.executable).with_name("serve")
        command = [program, "run", file, "--non-blocking", "--address", self.nodes.cluster.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
        assert done.returncode == 0, done.stdout + done.stderr

    def status(self) -> Any:
        """Serve's status of it; `None` if it is deleted."""
        return serve.status().applications.get("galatea")

    def wait_for(self, state: str) -> None:
        """Waits until the application is in this state."""
        def there() -> bool:
            assert self.status().status in (state, "DEPLOYING", "NOT_STARTED"), self.status()
            return self.status().status == state

        wait_until(there, SECONDS_MAX, f"the application is {state}")

    def replicas(self) -> dict[str, int]:
        """The number of replicas in each state."""
        application = self.status()
        # While an update is prepared, Serve shows no deployment.
        if application is None or "Galatea" not in application.deployments:
            return {}
        states = application.deployments["Galatea"].replica_states
        return {state: count for state, count in states.items() if count}

    def wait_for_replicas(self, count: int) -> None:
        """Waits until this number of replicas is running, and no other starts or stops."""
        wait_until(
            lambda: self.replicas() == {"RUNNING": count}, SECONDS_MAX, f"{count} replicas run"
        )

    def statistics(self, model: str, count: int) -> dict[str, dict[str, Any]]:
        """The responses of this number of replicas about a model, by their names."""
        handle = serve.get_app_handle("galatea")
        said: dict[str, dict[str, Any]] = {}

        def all_have() -> bool:
            # Serve chooses the replica that responds.
            answer = handle.statistics.remote(model).result(timeout_s=SECONDS_MAX)
            [statistics] = answer.pop("model_stats")
            said[answer["replica"]] = {**answer, **statistics}
            return len(said) == count

        wait_until(all_have, SECONDS_MAX, f"{count} replicas answer")
        return said

