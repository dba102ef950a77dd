from chunkwise.data.problems import SHOWN, Problem, list_problems, problem_of, refuse
from chunkwise.errors import DataError


def of(file: str, found: str = "none", **where: int | str) -> Problem:
    return Problem(file=file, expected="a reward", found=found, **where)  # pyright: ignore[reportArgumentType]


def test_a_line_names_file_key_row_expected_and_found():
    assert str(of("a.hdf5")) == "a.hdf5: expected a reward, found none"
    assert str(of("a.hdf5", key="/reward")) == "a.hdf5: /reward: expected a reward, found none"
    assert str(of("a.hdf5", key="/reward", row=0)) == "a.hdf5: /reward, row 0: expected a reward, found none"
    assert str(of("t.parquet", row=3, episode=0)) == "episode 0, t.parquet: row 3: expected a reward, found none"
    assert str(of("a", key="k" * 301)).count("k") == 300


def test_an_error_is_taken_apart_where_it_is_written_as_a_problem():
    for problem in (of("a.json", key="t"), of("a.json"), of("a.json", "two, found by chance", key="t")):
        assert problem_of(DataError(problem), "a.json") == problem
    told = problem_of(DataError("a.json: it burns"), "a.json")
    assert (told.file, told.key, told.found) == ("a.json", "", "it burns")


def test_problems_that_are_alike_are_one_line_with_a_count():
    """306 episodes lack the camera that a flag names; one has another problem."""
    many = [of(f"episode_{i:05d}.hdf5", key="/reward") for i in range(306)]
    assert list_problems([many[0], of("x", key="/action"), *many[1:]]) == [
        f"{many[0]}; the same in 305 more, the last episode_00305.hdf5",
        "x: /action: expected a reward, found none",
    ]
    by_episode = [of("all.parquet", episode=i) for i in (2, 5)]
    assert list_problems(by_episode) == [f"{by_episode[0]}; the same in episode 5, all.parquet"]
    unlike = [of("a", key="k"), of("b", key="j"), of("c", key="k", row=1), of("d", "one", key="k")]
    assert list_problems(unlike) == [str(problem) for problem in unlike]


def test_what_is_not_shown_is_counted():
    kinds = [of("a", key=f"k{i}") for i in range(SHOWN + 2)]
    problems = [*kinds, of("b", key=f"k{SHOWN}"), of("b", key="k0")]
    lines = list_problems(problems, all_by="inspect --json")
    assert len(lines) == SHOWN + 1
    assert lines[0].endswith("the same in b")
    assert lines[-1] == "and 3 more; inspect --json lists all"
    assert list_problems(kinds[:SHOWN])[-1] == str(kinds[SHOWN - 1])
    assert list_problems(problems, shown=3)[-1] == f"and {SHOWN} more"
    text = str(refuse(problems, "Repair them.", what="a set")).splitlines()
    assert text[0] == f"a set: {SHOWN + 4} problem(s):"
    assert text[1:] == [*(f"  {line}" for line in list_problems(problems)), "Repair them."]
    assert str(refuse(kinds[:1])) == f"1 problem(s):\n  {kinds[0]}"
