"""What every medium promises, as one suite: a class of tests is made by giving it a `medium`."""

from concurrent.futures import ThreadPoolExecutor

from omlx_server.store.mediums.medium import Medium, Name


def name(number: int, namespace: int = 1) -> Name:
    return Name(f"{namespace:016x}", f"{number:064x}")


class MediumContract:
    """Subclasses, or their module, have a fixture `medium`."""

    def test_what_is_put_comes_back(self, medium: Medium) -> None:
        medium.put(name(1), [b"one", memoryview(b"two"), b"", b"three"])
        assert medium.get(name(1)) == b"onetwothree"

    def test_empty_content_is_there(self, medium: Medium) -> None:
        medium.put(name(1), [])
        assert medium.get(name(1)) == b""
        assert medium.contains_many([name(1)]) == {name(1)}

    def test_megabytes_come_back(self, medium: Medium) -> None:
        content = bytes(range(256)) * (3 * 4096)
        medium.put(name(1), [content[:1000], memoryview(content)[1000:]])
        assert medium.get(name(1)) == content

    def test_the_last_put_counts(self, medium: Medium) -> None:
        medium.put(name(1), [b"a longer one"])
        medium.put(name(1), [b"new"])
        assert medium.get(name(1)) == b"new"

    def test_the_absent_is_none(self, medium: Medium) -> None:
        assert medium.get(name(1)) is None

    def test_contains_many_names_what_is_there(self, medium: Medium) -> None:
        for number in (1, 3):
            medium.put(name(number), [b"x"])
        assert medium.contains_many(map(name, range(40))) == {name(1), name(3)}
        assert medium.contains_many([]) == set()

    def test_the_deleted_is_gone_and_deleting_it_again_is_fine(self, medium: Medium) -> None:
        medium.put(name(1), [b"x"])
        medium.delete(name(1))
        medium.delete(name(1))
        assert medium.get(name(1)) is None
        assert medium.contains_many([name(1)]) == set()

    def test_namespaces_are_apart(self, medium: Medium) -> None:
        medium.put(name(1, namespace=1), [b"one"])
        medium.put(name(1, namespace=2), [b"two"])
        medium.delete(name(1, namespace=2))
        assert medium.get(name(1, namespace=1)) == b"one"
        assert medium.get(name(1, namespace=2)) is None

    def test_readers_see_all_or_nothing(self, medium: Medium) -> None:
        versions = [bytes([letter]) * 200_000 for letter in b"abcd"]

        def write(version: bytes) -> None:
            for _ in range(5):
                medium.put(name(1), [version[:7], version[7:]])

        with ThreadPoolExecutor(5) as pool:
            writers = [pool.submit(write, version) for version in versions]
            seen = {medium.get(name(1)) for _ in range(20)}
            for writer in writers:
                writer.result()
        assert seen <= {None, *versions}
        assert medium.get(name(1)) in versions
