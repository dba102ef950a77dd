"""What stays in memory of a dataset whose rows are drawn at random."""

from chunkwise.data.lerobot import video


def test_the_cache_keeps_what_was_used_last_and_fits():
    made: list[int] = []

    def make(size: int) -> int:
        made.append(size)
        return size

    cache = video._Cache(10, make, size=lambda item: item)
    for key in (4, 6, 4, 1, 6, 4):  # 1 does not fit beside 4 and 6: 6, used longest ago, goes, and then 4 for 6
        assert cache.get(key) == key
    assert made == [4, 6, 1, 6, 4]
    assert cache.get(50) == 50, "one that is larger than the room is used all the same"
    assert cache.get(50) == 50
    assert made == [4, 6, 1, 6, 4, 50]
