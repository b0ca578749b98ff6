"""Random workloads under random faults, generated from a seed and judged by independent judges.

`plan.generate` makes a plan from a seed, of the backends, workloads and faults in `catalogue`.
`runner` runs it on the servers and links of `stores`, while `faults` injects. Each process executes
`commands`: threads of a `workload`, or customers of a shop (`stock`), record what they are told.
`judge` and `judge_sales` read these records; `campaign` runs plan after plan, and finds the faults
that a failing one needs.
"""
