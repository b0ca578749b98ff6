"""The kernel of all experiments: parameters, servers, processes, faults, histories and judges."""
