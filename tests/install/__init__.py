"""What users install: the wheel and the sdist, in environments that hold nothing else."""
