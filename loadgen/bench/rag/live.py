PARTS=()
def targets_of(out): return []
