"""The rows F1-F40 of the fault matrix, and the tests that show each."""

from typing import NamedTuple


class Row(NamedTuple):
    """One row of the fault matrix: what happens, how if no figure says so, and which tests show it."""

    fault: str
    how: str
    tests: tuple[str, ...]
    """Names of tests, as ``file.py::name``; those of the first file :func:`record`."""


def _rows(theme: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/chaos/test_rows_{theme}.py::test_{name}" for name in names)


SCRIPTS = "tests/contract/test_scripts.py::test_"
CLIENT = "tests/contract/test_client.py::test_"
AT_ONCE = "tests/runtime/test_everything_at_once.py::test_"

# fmt: off
ROWS: dict[str, Row] = {
    "F1": Row("a worker is killed", "SIGKILL at any moment, of one of three",
        _rows("workers",
            "what_a_killed_worker_had_is_done_by_others_in_five_seconds_and_is_in_the_log_once")),
    "F2": Row("rolling restart", "SIGTERM, wait, start the next",
        _rows("workers", "a_rolling_restart_hands_over_in_half_a_second_and_executes_no_record_twice")),
    "F3": Row("a worker sleeps and wakes", "SIGSTOP until others have committed to its partitions, SIGCONT",
        _rows("workers", "nothing_that_a_sleeper_had_in_hand_is_committed_when_it_wakes")),
    "F4": Row("the event loop is blocked", "",
        _rows("workers", "a_handler_that_blocks_or_computes_for_sessions_moves_nothing")),
    "F5": Row("the interpreter is held", "",
        _rows("workers", "a_handler_that_holds_the_interpreter_may_lose_its_partitions_and_nothing_else")),
    "F6": Row("heartbeats alone fail", "",
        _rows("network", "a_worker_whose_heartbeats_alone_are_lost_begins_nothing_before_it_is_removed")),
    "F7": Row("no time to run", "",
        _rows("workers", "workers_that_hardly_get_to_run_lose_nothing_for_it")),
    "F8": Row("Redis restarts with its data", "",
        _rows("server", "a_restart_with_its_data_moves_loses_and_repeats_nothing")),
    "F9": Row("Redis loses all data", "",
        _rows("server", "workers_begin_anew_when_all_data_is_gone_and_commit_nothing_of_the_former_life")),
    "F10": Row("loss of power", "",
        _rows("server", "what_is_left_after_a_loss_of_power_fits_together")),
    "F11": Row("the append-only file is damaged", "",
        _rows("server", "a_server_that_does_not_come_back_is_not_hammered")),
    "F12": Row("Redis hangs", "",
        _rows("server", "a_server_that_hangs_is_waited_for_and_nothing_moves")),
    "F13": Row("a worker is cut off", "",
        _rows("network", "a_worker_that_is_cut_off_is_taken_over_from_and_what_it_sends_late_is_refused")),
    "F14": Row("answers are lost", "", (
        *_rows("network", "answers_that_are_lost_duplicate_nothing"),
        f"{AT_ONCE}every_good_record_comes_out_once_in_order_and_every_bad_one_is_a_dead_letter",
    )),
    "F15": Row("connections break", "", (
        *_rows("network", "no_answer_is_taken_for_another_calls_however_connections_break"),
        f"{CLIENT}no_reply_is_ever_taken_for_another_calls",
    )),
    "F16": Row("a slow network", "",
        _rows("network", "a_slow_network_moves_nothing")),
    "F17": Row("failover to a replica", "", (
        "tests/sentinel/test_failovers.py::test_no_failover_makes_two_owners_or_loses_anything_in_silence",
        "tests/sentinel/test_failovers.py::test_many_failovers",
        "tests/cluster/test_failovers.py::test_failovers_again_and_again",
        "tests/durability/test_failover.py::test_failovers_to_a_replica_lose_nothing_that_was_acknowledged",
    )),
    "F18": Row("scripts are forgotten", "", (
        *_rows("server", "scripts_that_are_forgotten_all_the_time_are_noticed_by_nobody"),
        "tests/contract/test_append.py::test_two_appends_of_one_producer_keep_their_order_when_scripts_are_lost",
    )),
    "F19": Row("memory is full", "", (
        *_rows("server", "full_memory_refuses_who_sends_and_loses_nothing_that_was_confirmed"),
        "tests/contract/test_commit.py::test_a_commit_under_full_memory_is_all_or_nothing",
    )),
    "F20": Row("no room for connections", "", (
        *_rows("server", "a_server_without_room_for_connections_keeps_who_is_in_and_is_not_hammered"),
        f"{CLIENT}a_server_at_its_limit_of_connections_is_unavailable",
    )),
    "F21": Row("the disk is full", "",
        _rows("server", "a_full_disk_stops_all_and_loses_nothing")),
    "F22": Row("somebody's script runs on", "EVAL, SCRIPT KILL", (
        *_rows("server", "a_server_busy_with_a_script_of_somebody_is_waited_for"),
        f"{CLIENT}a_server_busy_with_a_script_is_unavailable",
    )),
    "F23": Row("the membership is damaged", "SET", (
        *_rows("data", "a_damaged_membership_is_mended_by_its_group_and_ends_nobody"),
        "tests/core/test_mending.py::test_a_document_of_a_later_release_is_never_put_aside",
        "tests/contract/test_membership.py::test_a_document_of_somebody_else_is_not_overwritten",
    )),
    "F24": Row("entries that are no records", "XADD", (
        *_rows("data", "entries_that_are_no_records_hold_nobody_up"),
        "tests/security/test_fuzz.py::test_a_decoder_answers_or_raises_an_error_of_ours",
    )),
    "F25": Row("keys of another type", "RENAME, and back", (
        *_rows("data", "a_key_of_another_type_is_named_and_stops_no_other_partition"),
        f"{SCRIPTS}a_key_of_another_type_stops_a_script_before_it_writes",
    )),
    "F26": Row("clocks are wrong", "as Python shows them", (
        *_rows("data", "workers_whose_clocks_are_wrong_do_what_the_others_do"),
        "tests/simulation/test_simulation.py::test_each_fault_alone_is_survived",
    )),
    "F27": Row("many join at once", "5 processes", (
        *_rows("workers", "fifty_workers_that_join_at_once_come_to_one_assignment"),
        "tests/rebalance/test_many_workers.py::test_workers_that_join_at_once_make_a_few_documents_and_not_one_each",
    )),
    "F28": Row("a member comes and goes", "SIGTERM",
        _rows("workers", "a_member_that_comes_and_goes_leaves_others_their_work")),
    "F29": Row("all go, and come back", "SIGTERM",
        _rows("workers", "who_comes_back_to_an_empty_group_does_not_wait")),
    "F30": Row("more workers than partitions", "SIGKILL of one that works",
        _rows("workers", "of_those_who_stand_by_one_takes_over")),
    "F31": Row("more partitions", "one declares more", (
        *_rows("workers", "a_worker_that_wants_more_partitions_is_refused_and_the_others_go_on"),
        "tests/runtime/test_grown_groups.py::test_groups_go_on_in_order_while_their_stream_grows_twice",
    )),
    "F32": Row("two releases side by side", "joins, deaths and leaves", (
        *_rows("versions", "workers_of_two_releases_share_a_group_through_joins_deaths_and_leaves"),
        "tests/core/test_membership.py::test_a_document_of_another_format_names_both_formats",
    )),
    "F33": Row("the control stream is lost", "DEL, XTRIM 0",
        _rows("data", "members_agree_without_any_message")),
    "F34": Row("a source is deleted", "DEL, XADD", (
        *_rows("data", "a_source_that_is_deleted_or_made_anew_lower_is_noticed_and_named"),
        "tests/runtime/test_fetcher.py::test_a_deleted_stream_is_noticed",
    )),
    "F35": Row("Spark's driver is killed", "", (
        "tests/spark/test_driver_killed.py::test_a_driver_killed_in_mid_batch_leaves_no_trace",
        "tests/spark/test_killed_in_turn.py::test_whatever_is_killed_in_turn_each_table_equals_the_log",
    )),
    "F36": Row("Spark's Python worker is killed", "", (
        "tests/spark/test_python_killed.py::test_a_killed_python_process_costs_a_restart_and_no_row",
    )),
    "F37": Row("Spark's checkpoint is lost", "", (
        "tests/spark/test_checkpoint_lost.py::test_a_table_of_files_is_not_written_on_from_another_checkpoint",
    )),
    "F38": Row("the log is trimmed under Spark", "XTRIM and XDEL beyond its offset", (
        "tests/spark/test_trimmed.py::test_rows_that_were_trimmed_are_never_left_out_in_silence",
        "tests/spark/test_source.py::test_a_loss_ends_the_query_by_its_name",
    )),
    "F39": Row("two queries on one log", "", (
        "tests/spark/test_trimmed.py::test_trimming_waits_for_a_query_that_is_away_and_the_limit_says_so",
        "tests/contract/test_trim.py::test_the_slowest_reader_decides_about_the_acked_log",
        "tests/spark/test_source.py::test_a_reader_holds_its_place_before_it_has_read_anything",
    )),
    "F40": Row("cut off one by one", "",
        _rows("network", "workers_that_are_cut_off_and_back_in_any_order_end_up_at_work")),
}
# fmt: on
