"""What IOP costs a request beside what others cost under the same load: `python -m bench.speed`."""
