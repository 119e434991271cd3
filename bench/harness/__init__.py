"""The parts of the benchmark: workloads, model repositories, servers, load and reports.

It contains no code from either server. Both are started as commands, and observed only
through their ports, their statistics and the kernel's accounting.
"""
