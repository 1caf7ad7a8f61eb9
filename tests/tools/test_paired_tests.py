"""Rows of a study compared over the seeds that both have."""

from tools.paired_tests import compared


def run(row, seed, served, worst, column="a", status="done"):
    return {"column": column, "row": row, "seed": seed, "status": status, "served_mean": served, "served_min": worst}


def test_differences_over_shared_seeds_only():
    ours = [run("ours", seed, 0.8 + 0.01 * seed, 0.5) for seed in range(4)]
    theirs = [run("theirs", seed, 0.7, 0.4 + 0.01 * seed) for seed in range(3)]
    left_out = [run("few", 0, 0.1, 0.1), run("theirs", 3, 0.0, 0.0, status="failed"), run("theirs", 3, 0.0, 0.0, column="b")]
    served, worst = compared(ours + theirs + left_out, "a", "ours")
    assert served.startswith("theirs, served: +11.00 over 3 seeds, t-test 0.0027")  # 10, 11, 12: t = 11·√3
    assert worst.startswith("theirs, worst client: +9.00 over 3 seeds")
    assert served.endswith("sign flips 0.2500")
