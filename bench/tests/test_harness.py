"""Tests of the harness's computations, without servers.

python -m unittest discover bench/tests
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from harness import (
    generator,
    h2load,
    measure,
    perf_analyzer,
    process,
    report,
    request_body,
    server,
    workloads,
)


def usage(cpu: float, switches: int) -> process.Usage:
    return process.Usage(
        user=cpu,
        kernel=cpu,
        children=0.0,
        voluntary_switches=switches,
        involuntary_switches=switches,
        resident=2048,
        resident_peak=4096,
        threads=1,
    )


def snapshot(time: float, requests: int, cpu: float, switches: int) -> measure.Snapshot:
    counts = server.ModelCounts(
        requests=requests, failures=0, inferences=2 * requests, executions=requests
    )
    return measure.Snapshot(
        time=time, counts=counts, server=usage(cpu, switches), client=usage(cpu / 2, 0)
    )


class Measuring(unittest.TestCase):
    def test_costs_are_differences_divided_by_requests(self) -> None:
        values = measure.per_request(snapshot(1.0, 10, 1.0, 5), snapshot(3.0, 110, 1.5, 105))
        self.assertAlmostEqual(values["cpu_us"], 10_000.0)
        self.assertAlmostEqual(values["kernel_us"], 5_000.0)
        self.assertAlmostEqual(values["switches"], 2.0)
        self.assertAlmostEqual(values["batch"], 2.0)
        self.assertAlmostEqual(values["client_core"], 0.25)

    def test_no_request_is_an_error_and_not_a_division_by_zero(self) -> None:
        with self.assertRaises(RuntimeError):
            measure.per_request(snapshot(1.0, 10, 1.0, 5), snapshot(3.0, 10, 1.5, 105))

    def test_a_cache_answers_everything_or_the_figures_are_void(self) -> None:
        def cached(executions: int) -> measure.Snapshot:
            counts = server.ModelCounts(10 + 100, 0, 2 + executions, 2 + executions)
            return dataclasses.replace(snapshot(3.0, 110, 1.5, 105), counts=counts)

        counts = server.ModelCounts(10, 0, 2, 2)
        before = dataclasses.replace(snapshot(1.0, 10, 1.0, 5), counts=counts)
        values = measure.per_request(before, cached(0), cached=True)
        self.assertAlmostEqual(values["cpu_us"], 10_000.0)
        self.assertNotIn("batch", values)
        with self.assertRaises(RuntimeError):
            measure.per_request(before, cached(1), cached=True)
        with self.assertRaises(RuntimeError):
            measure.per_request(before, cached(0))

    def test_status_keeps_numbers_only(self) -> None:
        text = "Name:\tserver 1\nVmRSS:\t    2048 kB\nnonvoluntary_ctxt_switches:\t7\n"
        self.assertEqual(
            process.parse_status(text), {"VmRSS": 2048, "nonvoluntary_ctxt_switches": 7}
        )

    def test_this_process_has_accounts(self) -> None:
        own = process.usage(os.getpid())
        self.assertGreater(own.resident, 0)
        self.assertGreaterEqual(own.resident_peak, own.resident)


WORK = pathlib.Path("work")


class Loading(unittest.TestCase):
    def test_report_of_perf_analyzer(self) -> None:
        text = "Concurrency,Inferences/Second,p50 latency,p90 latency,p99 latency\n8,1000.5,7,8,9\n"
        self.assertEqual(perf_analyzer.parse_report(text), generator.ClientView(1000.5, 7.0, 9.0))

    def test_report_without_a_row_is_an_error(self) -> None:
        with self.assertRaises(RuntimeError):
            perf_analyzer.parse_report("Concurrency,Inferences/Second\n")

    def test_many_clients_share_one_thread(self) -> None:
        many = workloads.Load("many", "model", "grpc", 8)
        one = workloads.Load("one", "model", "grpc", 1)
        self.assertIn("--max-threads", perf_analyzer.plan("p", many, "a", 1, WORK).command)
        self.assertNotIn("--max-threads", perf_analyzer.plan("p", one, "a", 1, WORK).command)

    def test_shared_memory_holds_the_largest_tensor(self) -> None:
        work = workloads.Load("w", "m", "http", 1, shapes=("A:2,3", "B:4"), shared_memory=True)
        command = perf_analyzer.plan("p", work, "a", 1, WORK).command
        self.assertEqual(command[command.index("--output-shared-memory-size") + 1], "24")

    def test_log_of_h2load(self) -> None:
        text = "".join(f"{1000 * start}\t200\t{500 + start}\n" for start in range(100))
        seen = h2load.parse_log(text)
        self.assertEqual((seen.p50, seen.p99), (550.0, 599.0))
        self.assertAlmostEqual(seen.throughput, 100 / 0.099599)

    def test_a_refused_request_is_an_error(self) -> None:
        with self.assertRaises(RuntimeError):
            h2load.parse_log("1\t200\t5\n2\t503\t5\n")

    def test_http_body_says_where_its_json_ends(self) -> None:
        body, length = request_body.http_body("simple")
        header = json.loads(body[:length])
        sizes = [each["parameters"]["binary_data_size"] for each in header["inputs"]]
        self.assertEqual(len(body), length + sum(sizes))

    def test_grpc_frame_carries_its_length_and_long_fields(self) -> None:
        body = request_body.grpc_body("identity")
        self.assertEqual(int.from_bytes(body[1:5], "big"), len(body) - 5)
        self.assertEqual(body[5:15], b"\x0a\x08identity")
        self.assertTrue(body.endswith(b"\x3a\x40" + request_body.INPUTS["identity"][0].data))


class Reporting(unittest.TestCase):
    def test_ratio_pairs_the_rounds(self) -> None:
        ours = [{"cpu_us": 1.0}, {"cpu_us": 10.0}, {"cpu_us": 4.0}]
        triton = [{"cpu_us": 2.0}, {"cpu_us": 20.0}, {"cpu_us": 4.0}]
        self.assertEqual(report.ratio(ours, triton, "cpu_us"), 0.5)

    def test_a_failed_round_is_left_out_with_its_pair(self) -> None:
        ours = [{}, {"cpu_us": 1.0}]
        triton = [{"cpu_us": 100.0}, {"cpu_us": 4.0}]
        self.assertEqual(report.ratio(ours, triton, "cpu_us"), 0.25)

    def test_table_groups_by_columns_and_survives_a_missing_side(self) -> None:
        results = {
            "start": {"galatea": [{"ready_ms": 5.0}], "triton": [{"ready_ms": 100.0}]},
            "load": {"galatea": [{"throughput": 2.0}], "triton": [{}]},
        }
        text = report.table(results)
        self.assertIn("| start | 5.0 / 100.0 = **0.05** |", text)
        self.assertIn("| load | 2 / – |", text)

    def test_another_galatea_may_be_the_rival(self) -> None:
        rounds = {"galatea": [{"cpu_us": 9.0}], report.BEFORE: [{"cpu_us": 12.0}]}
        self.assertIn("| 9.0 / 12.0 = **0.75** |", report.table({"row": rounds}))
        summary = report.summary({"row": rounds})["row"]["cpu_us"]
        self.assertEqual((summary["ratio"], summary[report.BEFORE]), (0.75, 12.0))

    def test_a_busy_client_and_failures_are_named(self) -> None:
        rounds = {"galatea": [{"client_core": 0.97, "failures": 3}]}
        self.assertEqual(report.notes(rounds), "client-bound (galatea), 3 failures (galatea)")

    def test_rounds_that_disagree_are_named(self) -> None:
        steady = {"galatea": [{"cpu_us": 1.0}] * 2, "triton": [{"cpu_us": 2.0}, {"cpu_us": 2.2}]}
        self.assertEqual(report.notes(steady), "")
        unsteady = {"galatea": [{"cpu_us": 1.0}] * 2, "triton": [{"cpu_us": 2.0}, {"cpu_us": 4.0}]}
        self.assertEqual(report.notes(unsteady), "rounds differ: CPU µs/request 0.25–0.50")


class Choosing(unittest.TestCase):
    def test_names_are_unique(self) -> None:
        names = [each.name for each in workloads.all_workloads()]
        self.assertEqual(len(names), len(set(names)))

    def test_filters_are_parts_of_names(self) -> None:
        chosen = workloads.select(workloads.all_workloads(), ["mlp-http", "mlp-grpc-32-h"])
        names = ["mlp-http-32", "mlp-http-32-h2load", "mlp-grpc-32-h2load"]
        self.assertEqual([each.name for each in chosen], names)


if __name__ == "__main__":
    unittest.main()
