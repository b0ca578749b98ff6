"""Random workloads under random faults, generated from a seed and judged by independent judges."""
