"""The parts of the benchmark: workloads, model repositories, servers, load and report.

What is not here: any code of either server. Both are started as commands and
seen only through their ports, their statistics and the kernel's accounts.
"""
