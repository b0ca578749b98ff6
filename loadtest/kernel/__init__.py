"""What every experiment is made of: servers, processes, faults."""
