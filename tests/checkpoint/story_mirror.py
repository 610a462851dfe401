"""What is said of mirrors, in a bucket of a real server of S3's kind."""

import itertools

import pytest
from obstore.fsspec import register

from tests.checkpoint.test_mirror import (
    Place,
    test_a_damaged_one_is_replaced_by_the_whole_one_of_the_mirror,
    test_an_earlier_writer_uploads_nothing_more,
    test_another_machine_goes_on_from_the_mirror,
    test_the_catalogue_reads_a_mirror_where_it_is,
    test_what_was_changed_in_the_mirror_is_passed_over,
)
from tests.store.buckets import server

__all__ = [
    "server",
    "test_a_damaged_one_is_replaced_by_the_whole_one_of_the_mirror",
    "test_an_earlier_writer_uploads_nothing_more",
    "test_another_machine_goes_on_from_the_mirror",
    "test_the_catalogue_reads_a_mirror_where_it_is",
    "test_what_was_changed_in_the_mirror_is_passed_over",
]
_number = itertools.count()


@pytest.fixture
def place(server: int) -> Place:
    """An empty mirror: its URL, and options."""
    register("s3")
    access = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    config = {"endpoint": f"http://127.0.0.1:{server}", "virtual_hosted_style_request": "false", **access}
    return f"s3://logs/run-{next(_number)}", {"config": config, "client_options": {"allow_http": True}}
