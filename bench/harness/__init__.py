"""The parts of the benchmark: workloads, model repositories, servers, load and report.

It has no code of either server. Both are started as commands and
seen only through their ports, their statistics and the kernel's accounts.
"""
