"""What becomes of each fault in each part of the project, and the test that proves it: docs/reliability.md's table.

`test_faults.py` checks that nothing is left out and that every test is there; `python -m benchmarks.faults` prints it.
"""

from __future__ import annotations

from typing import NamedTuple

PARTS = ("training", "resume", "evaluation", "conversion", "index", "search", "export", "serve")
MENDED, COUNTED, ONE_LINE, NONE = "mended", "skipped and counted", "one clear line", "does not arise"


class Cell(NamedTuple):
    """What becomes of a fault in a part: one of the four above, and the test "file::function", or why it cannot be."""

    outcome: str
    because: str


def mended(test: str) -> Cell:
    """It makes no difference: the result is what it would have been, or the best there is, and it is said."""
    return Cell(MENDED, f"tests/test_{test}")


def counted(test: str) -> Cell:
    """What cannot be used is left out, counted and named; too much of it ends the work."""
    return Cell(COUNTED, f"tests/test_{test}")


def one_line(test: str) -> Cell:
    """The work ends, or does not begin, with one line that says what is wrong and what to do."""
    return Cell(ONE_LINE, f"tests/test_{test}")


def no(reason: str) -> Cell:
    """There is no such fault here."""
    return Cell(NONE, reason)


SERVES = no("it reads exports and an index, no data")
EXPORTS = no("an export reads a model, no data")
SEARCHES = no("it reads an index, no data")
READS = no("it writes nothing")
AS_TRAINING = None  # a run that goes on reads what a new one reads, and counts on from there


def only_serve(test: str, outcome=one_line) -> tuple[Cell, ...]:
    """A fault of the network: the others have no clients."""
    return (*[no("it has no clients")] * 7, outcome(test))


LOADS = "embedder.py::test_broken_workdirs_are_named"
EXPORTED = "serve_search.py::test_a_damaged_export_is_named"
DAMAGED_RECORDS = "search.py::test_damaged_records_are_listed_and_the_rest_is_indexed"
TWENTY_KILLS = "kills.py::test_twenty_kills_at_random_moments_change_nothing"
DISK = "commands.py::test_a_full_disk_is_one_line_wherever_a_command_writes"
SYNCED = "files.py::test_a_folder_is_on_the_disk_before_its_name_is_and_before_the_old_one_goes"
SYNCED_FILE = "files.py::test_a_file_is_on_the_disk_before_its_name_is"
TRUST = "embedder.py::test_a_stored_handle_is_fetched_only_with_trust"
STRICT = "pipeline.py::test_the_vocabulary_leaves_damaged_records_out_as_training_does"
UPRIGHT = "pictures.py::test_encoders_and_records_get_upright_images"
IN_THE_GRAPH = "images.py::test_photographs_are_turned_as_pillow_turns_them"
ANY_FORMAT = "embedder.py::test_whatever_pillow_reads_is_encoded"
UNREADABLE = "embedder.py::test_unreadable_images_are_named_or_skipped"
PIXELS = "embedder.py::test_images_of_too_many_pixels_and_pipes_are_refused"

_ROWS: dict[str, tuple[Cell | None, ...]] = {
    # training, resume, evaluation, conversion, index, search, export, serve
    "a flipped bit in a record": (
        counted("pipeline.py::test_damage_in_a_file_costs_no_more_than_itself"),
        counted("pipeline.py::test_unusable_records_are_skipped_and_counted"),
        one_line(STRICT),
        counted("convert_odd.py::test_a_flipped_bit_in_a_tar_header_costs_one_member"),
        counted(DAMAGED_RECORDS),
        one_line("tfrecord.py::test_records_and_their_places"),
        EXPORTS,
        SERVES,
    ),
    "a flipped bit in a record's length": (
        counted("tfrecord.py::test_the_graph_reads_behind_damage_as_python_does"),
        AS_TRAINING,
        one_line(STRICT),
        counted("tfrecord.py::test_any_flipped_bit_costs_its_own_record_alone"),
        counted("tfrecord.py::test_any_flipped_bit_costs_its_own_record_alone"),
        SEARCHES,
        EXPORTS,
        SERVES,
    ),
    "a data file that is cut off": (
        counted("pipeline.py::test_damage_in_a_file_costs_no_more_than_itself"),
        mended("workdir.py::test_a_place_in_other_data_is_not_applied"),
        one_line(STRICT),
        counted("convert_images.py::test_img2dataset_that_was_cut_off"),
        counted(DAMAGED_RECORDS),
        SEARCHES,
        EXPORTS,
        SERVES,
    ),
    "garbage in place of the first record": (
        counted("pipeline.py::test_the_first_records_may_be_garbage"),
        AS_TRAINING,
        one_line(STRICT),
        counted("convert_odd.py::test_odd_records_of_img2dataset"),
        counted(DAMAGED_RECORDS),
        SEARCHES,
        EXPORTS,
        SERVES,
    ),
    "records of another kind": (
        one_line("pipeline.py::test_the_first_records_may_be_garbage"),
        AS_TRAINING,
        one_line("retrieval.py::test_records_of_another_kind_are_named"),
        counted("convert_odd.py::test_odd_records_of_our_own"),
        counted(DAMAGED_RECORDS),
        SEARCHES,
        EXPORTS,
        SERVES,
    ),
    "a missing shard": (
        counted("workdir.py::test_a_place_in_other_data_is_not_applied"),
        mended("workdir.py::test_a_place_in_other_data_is_not_applied"),
        one_line("pipeline.py::test_a_missing_shard_is_no_smaller_split"),
        counted("convert_odd.py::test_odd_records_of_our_own"),
        counted(DAMAGED_RECORDS),
        SEARCHES,
        EXPORTS,
        SERVES,
    ),
    "data that changed since": (
        no("a new run has seen nothing yet"),
        mended("workdir.py::test_data_that_changed_are_noticed_by_the_step_they_were_trained_to"),
        no("every evaluation reads the data as they are"),
        one_line("convert.py::test_an_unfinished_conversion_of_something_else_is_kept"),
        no("an index is of the images as they were; --update adds new ones"),
        one_line("tfrecord.py::test_records_and_their_places"),
        EXPORTS,
        SERVES,
    ),
    "data without a single usable record": (
        one_line("pipeline.py::test_an_epoch_of_nothing_usable_ends_the_run_whatever_the_bound"),
        AS_TRAINING,
        one_line("retrieval.py::test_split_of_unreadable_images_is_named"),
        one_line("convert.py::test_nothing_to_write"),
        one_line("search.py::test_missing_sources_are_named"),
        SEARCHES,
        EXPORTS,
        SERVES,
    ),
    "an image that does not decode": (
        counted("pipeline.py::test_unusable_records_are_skipped_and_counted"),
        AS_TRAINING,
        counted("retrieval.py::test_too_many_images_that_do_not_decode_end_the_evaluation"),
        counted("convert_filters.py::test_images_that_cannot_be_used"),
        counted("search.py::test_an_index_is_written_and_read"),
        one_line(UNREADABLE),
        one_line("export.py::test_the_loaded_export_names_unusable_images_and_has_both_heads"),
        one_line("serve.py::test_an_image_that_cannot_be_read_is_named_or_zeros_where_asked_for"),
    ),
    "an image bomb: kilobytes that claim gigabytes of pixels": (
        counted("images.py::test_too_many_pixels_are_not_decoded"),
        AS_TRAINING,
        counted(PIXELS),
        counted("pictures.py::test_bombs_are_skipped_and_counted_in_conversion"),
        counted(PIXELS),
        one_line(PIXELS),
        mended("export_serving.py::test_a_bad_image_gets_zeros_and_its_neighbours_what_they_get_alone"),
        one_line("serve.py::test_images_that_claim_too_many_pixels_are_refused_before_decoding"),
    ),
    "a photograph that lies on its side": (
        mended(IN_THE_GRAPH),
        AS_TRAINING,
        mended(UPRIGHT),
        mended(UPRIGHT),
        mended(UPRIGHT),
        mended(UPRIGHT),
        mended(IN_THE_GRAPH),
        mended(IN_THE_GRAPH),
    ),
    "WebP, AVIF, TIFF": (
        no("conversion makes JPEG of them; in records of others they count as images that do not decode"),
        AS_TRAINING,
        mended(ANY_FORMAT),
        mended("convert_images.py::test_img2dataset"),
        mended(ANY_FORMAT),
        mended(ANY_FORMAT),
        mended(ANY_FORMAT),
        mended("serve.py::test_other_formats_are_encoded_again"),
    ),
    "text that is empty or not UTF-8": (
        counted("pipeline.py::test_unusable_records_are_skipped_and_counted"),
        AS_TRAINING,
        one_line("caption_files.py::test_lines_that_cannot_be_read_are_reported"),
        counted("convert_pairs.py::test_moses_zip"),
        counted("search.py::test_texts_of_records_tables_and_files"),
        one_line("search.py::test_queries_of_a_table"),
        mended("export_serving.py::test_any_bytes_are_a_text"),
        one_line("serve.py::test_malformed_requests_are_reported"),
    ),
    "a damaged checkpoint": (
        no("a new run has none"),
        mended("checkpoints.py::test_a_damaged_checkpoint_falls_back_to_the_one_before"),
        one_line("checkpoints.py::test_no_usable_checkpoint_is_one_error"),
        no("it needs no model"),
        one_line("checkpoints.py::test_no_usable_checkpoint_is_one_error"),
        one_line("scripts.py::test_damaged_workdirs_are_reported"),
        one_line("checkpoints.py::test_no_usable_checkpoint_is_one_error"),
        no("it reads exports, no checkpoints"),
    ),
    "a damaged config.json of right syntax": (
        no("a new run writes its own"),
        one_line(LOADS),
        one_line(LOADS),
        no("it needs no model"),
        one_line(LOADS),
        one_line(LOADS),
        one_line(LOADS),
        one_line("serve_search.py::test_a_damaged_model_card_is_named"),
    ),
    "a damaged vocabulary: a bit, two lines": (
        one_line("prepare.py::test_a_given_file_that_is_not_the_expected_one_is_refused"),
        one_line("prepare.py::test_another_vocabulary_is_refused_at_the_next_start"),
        one_line(LOADS),
        no("it needs no model"),
        one_line(LOADS),
        one_line(LOADS),
        one_line("vocabulary.py::test_a_saved_model_is_checked_against_its_own_digest"),
        one_line(EXPORTED),
    ),
    "a damaged export": (
        one_line("hub_modules.py::test_damaged_settings_of_modules_are_one_line"),
        no("a run goes on from its own checkpoints"),
        one_line("embedder.py::test_broken_exports_are_named"),
        no("it needs no model"),
        one_line("embedder.py::test_broken_exports_are_named"),
        one_line("saved_models.py::test_a_flipped_bit_in_a_constant_of_the_graph_is_seen"),
        one_line("saved_models.py::test_damage_elsewhere_is_one_line"),
        one_line(EXPORTED),
    ),
    "a new version of an export that is broken or not whole": (
        no("it reads a version as it is"),
        no("a run goes on from its own checkpoints"),
        no("it reads a version as it is"),
        no("it needs no model"),
        no("it reads a version as it is"),
        no("it reads a version as it is"),
        mended("serve_versions.py::test_a_version_that_is_killed_while_it_appears_is_passed_over"),
        mended("serve_versions.py::test_a_broken_version_is_one_line_until_its_files_change"),
    ),
    "a damaged index": (
        no("it needs no index"),
        no("it needs no index"),
        no("it needs no index"),
        no("it needs no index"),
        one_line("search_odd.py::test_damaged_parts_of_an_unfinished_index_are_named"),
        one_line("search_odd.py::test_vectors_of_another_length_are_refused"),
        no("it needs no index"),
        one_line("serve_search.py::test_a_damaged_index_is_named"),
    ),
    "two processes in one folder": (
        one_line("workdir.py::test_a_workdir_has_one_run_at_a_time"),
        one_line("workdir.py::test_a_workdir_has_one_run_at_a_time"),
        no("a report is one file, written whole"),
        mended("convert.py::test_two_processes_make_one_data_set"),
        one_line("search.py::test_two_processes_do_not_make_one_index"),
        READS,
        one_line("export.py::test_one_process_exports_to_a_folder"),
        READS,
    ),
    "a full disk": (
        one_line("training_log.py::test_a_full_disk_is_one_message"),
        one_line("checkpoints.py::test_a_full_disk_is_reported_and_earlier_checkpoints_stay"),
        one_line(DISK),
        one_line("convert.py::test_a_full_disk_is_one_line_and_the_conversion_goes_on_later"),
        one_line(DISK),
        one_line(DISK),
        one_line("export.py::test_a_full_disk_is_one_line_and_leaves_the_old_export"),
        READS,
    ),
    "a kill at any moment": (
        mended(TWENTY_KILLS),
        mended(TWENTY_KILLS),
        mended(TWENTY_KILLS),
        mended("convert.py::test_kills_at_any_moment_and_the_same_command_again"),
        mended("search.py::test_an_interrupted_index_goes_on"),
        READS,
        mended(TWENTY_KILLS),
        no("it keeps nothing; SIGTERM lets running requests end"),
    ),
    "a power cut": (
        mended(SYNCED_FILE),
        mended(SYNCED_FILE),
        mended(SYNCED_FILE),
        mended(SYNCED),
        mended(SYNCED_FILE),
        READS,
        mended(SYNCED),
        READS,
    ),
    "hostile names of members, links and pipes": (
        no("records hold images, not names of files"),
        AS_TRAINING,
        counted(PIXELS),
        counted("convert_odd.py::test_odd_members_of_tar_files"),
        counted("search_odd.py::test_pipes_folders_and_links_to_nowhere_are_listed"),
        SEARCHES,
        EXPORTS,
        one_line("serve.py::test_wrong_paths_and_methods"),
    ),
    "`../` in a table of file names": (
        no("records hold images, not names of files"),
        AS_TRAINING,
        no("an image is turned into a vector, neither shown nor copied"),
        counted("convert_odd.py::test_tables_do_not_reach_outside_the_images"),
        counted("search_odd.py::test_tables_do_not_reach_outside_their_folder"),
        SEARCHES,
        EXPORTS,
        one_line("serve_search.py::test_wrong_questions_get_an_error"),
    ),
    "a handle to an untrusted graph, a class to import": (
        one_line("trust.py::test_code_from_elsewhere_needs_trust"),
        one_line("trust.py::test_code_from_elsewhere_needs_trust"),
        one_line(TRUST),
        no("it needs no model"),
        one_line(TRUST),
        one_line(TRUST),
        one_line("embedder.py::test_a_stored_class_is_imported_only_with_trust"),
        no("an export names no code; its own graph runs, see docs/reliability.md"),
    ),
    "malformed requests": only_serve("serve.py::test_damaged_requests_get_errors_or_right_answers"),
    "an attack on memory": only_serve(
        "serve_limits.py::test_bodies_in_flight_are_bounded_and_small_ones_still_come_in"
    ),
    "a client that leaves": only_serve("serve_limits.py::test_a_client_that_leaves_is_not_computed", mended),
    "a clock that is set": (
        mended("training_log.py::test_waiting_is_not_measured_by_a_clock_that_was_set"),
        no("nothing that is saved depends on a clock"),
        *[no("nothing depends on a clock")] * 5,
        no("deadlines are asyncio's, whose clock cannot be set"),
    ),
    "a learning rate that is too high": (
        one_line("training_log.py::test_a_run_at_chance_says_so_once"),
        AS_TRAINING,
        *[no("it does not train")] * 6,
    ),
    "another number of threads": (
        no("a new run notes how many there are"),
        one_line("workdir.py::test_another_number_of_threads_is_said"),
        *[no("results are equal up to rounding, and nothing goes on from them")] * 6,
    ),
}  # fmt: skip

FAULTS: dict[str, dict[str, Cell]] = {
    fault: {part: cell or cells[0] for part, cell in zip(PARTS, cells)} for fault, cells in _ROWS.items()
}


def as_markdown() -> str:
    """The table, what does not arise and why, and the tests, as they stand in docs/reliability.md."""
    lines = [f"| fault | {' | '.join(PARTS)} |", "|---" * (1 + len(PARTS)) + "|"]
    for fault, cells in FAULTS.items():
        shown = ["–" if cell.outcome == NONE else cell.outcome for cell in cells.values()]
        lines.append(f"| {fault} | {' | '.join(shown)} |")
    lines += ["", "What does not arise (–), and why; what the other cells claim, and the tests that prove it:", ""]
    for fault, cells in FAULTS.items():
        lines.append(f"- {fault}")
        for reason, parts in _grouped(cells).items():
            lines.append(f"  - {', '.join(parts)}: {f'`{reason}`' if '::' in reason else reason}")
    return "\n".join(lines) + "\n"


def _grouped(cells: dict[str, Cell]) -> dict[str, list[str]]:
    """{test or reason: the parts that have it}."""
    found: dict[str, list[str]] = {}
    for part, cell in cells.items():
        found.setdefault(cell.because, []).append(part)
    return found
