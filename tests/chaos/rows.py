"""The rows F1-F40 of the fault matrix, and the tests that show each."""

from typing import NamedTuple


class Row(NamedTuple):
    """One row of the fault matrix: what happens, how it is made to happen, and which tests show it."""

    fault: str
    how: str
    tests: tuple[str, ...]
    """Names of tests, as ``file.py::name``; the first ones are those that :func:`record`."""


def _rows(theme: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/chaos/test_rows_{theme}.py::test_{name}" for name in names)


REBALANCES = "tests/rebalance/test_rebalances.py::test_"
SCRIPTS = "tests/contract/test_scripts.py::test_"
MANY = "tests/rebalance/test_many_workers.py::test_"
AT_ONCE = "tests/runtime/test_everything_at_once.py::test_"
OUTAGES = "tests/rebalance/test_outages.py::test_"

ROWS: dict[str, Row] = {
    "F1": Row(
        "a worker is killed",
        "SIGKILL at any moment, of one of three",
        (
            *_rows(
                "workers",
                "what_a_killed_worker_had_is_done_by_others_and_is_in_the_log_once",
                "a_thousand_kills_at_default_settings_lose_nothing_and_are_made_good_in_five_seconds",
            ),
            f"{REBALANCES}the_partitions_of_a_killed_worker_run_elsewhere_within_five_seconds",
        ),
    ),
    "F2": Row(
        "rolling restart",
        "SIGTERM, wait, start the next",
        (
            *_rows(
                "workers",
                "a_rolling_restart_executes_no_record_twice",
                "fifty_rolling_restarts_of_eight_workers_execute_no_record_twice",
            ),
            f"{REBALANCES}a_worker_that_leaves_hands_over_within_half_a_second_and_nothing_runs_twice",
        ),
    ),
    "F3": Row(
        "a worker sleeps and wakes",
        "SIGSTOP until others have committed to its partitions, SIGCONT",
        (
            *_rows(
                "workers",
                "nothing_that_a_sleeper_had_in_hand_is_committed_when_it_wakes",
                "five_hundred_sleepers_commit_nothing_and_are_back_in_two_seconds",
            ),
            f"{REBALANCES}a_paused_worker_cannot_commit_after_it_wakes_and_rejoins_without_ending",
        ),
    ),
    "F4": Row(
        "the event loop is blocked",
        "a handler",
        (
            *_rows("workers", "a_handler_that_blocks_for_longer_than_the_session_moves_nothing"),
            f"{REBALANCES}a_handler_that_blocks_or_computes_for_six_sessions_causes_no_rebalance",
            f"{REBALANCES}a_handler_that_blocks_or_computes_for_a_minute_causes_no_rebalance",
        ),
    ),
    "F5": Row(
        "the interpreter is held",
        "a handler",
        _rows("workers", "a_handler_that_holds_the_interpreter_may_lose_its_partitions_and_nothing_else"),
    ),
    "F6": Row(
        "heartbeats alone fail",
        "a proxy",
        _rows("network", "a_worker_whose_heartbeats_alone_are_lost_begins_nothing_before_it_is_removed"),
    ),
    "F7": Row(
        "no time to run",
        "all in one session",
        (
            *_rows(
                "workers",
                "workers_that_hardly_get_to_run_lose_nothing_for_it",
                "workers_that_hardly_get_to_run_for_ten_minutes_lose_nothing_for_it",
            ),
            f"{REBALANCES}a_handler_that_blocks_or_computes_for_a_minute_causes_no_rebalance",
        ),
    ),
    "F8": Row(
        "Redis restarts with its data",
        "SIGKILL and SIGTERM in turn, start",
        (
            *_rows(
                "server",
                "a_restart_with_its_data_loses_and_repeats_nothing",
                "two_hundred_restarts_lose_nothing_and_are_over_in_two_seconds",
            ),
            f"{OUTAGES}a_restart_of_redis_moves_nothing_and_loses_nothing",
        ),
    ),
    "F9": Row(
        "Redis loses all data",
        "two workers",
        (
            *_rows(
                "server",
                "workers_begin_anew_when_all_data_is_gone_and_commit_nothing_of_the_former_life",
                "a_hundred_servers_that_lost_all_are_worked_on_again_in_three_seconds",
            ),
            f"{OUTAGES}workers_come_back_after_the_database_was_emptied",
        ),
    ),
    "F10": Row(
        "loss of power",
        "SIGKILL, start",
        _rows(
            "server",
            "what_is_left_after_a_loss_of_power_fits_together",
            "what_is_left_after_a_hundred_losses_of_power_fits_together",
        ),
    ),
    "F11": Row(
        "the append-only file is damaged",
        "64 bytes",
        _rows("server", "a_server_that_does_not_come_back_is_not_hammered"),
    ),
    "F12": Row(
        "Redis hangs",
        "SIGSTOP, SIGCONT",
        (
            *_rows(
                "server",
                "a_server_that_hangs_is_waited_for_and_nothing_moves",
                "a_server_that_hangs_for_half_a_minute_is_worked_on_again_in_two_seconds",
            ),
            f"{OUTAGES}a_redis_that_hangs_is_waited_for",
        ),
    ),
    "F13": Row(
        "a worker is cut off",
        "a proxy",
        _rows(
            "network",
            "a_worker_that_is_cut_off_is_taken_over_from_and_what_it_sends_late_is_refused",
            "two_hundred_workers_that_are_cut_off_are_taken_over_from_in_time",
        ),
    ),
    "F14": Row(
        "answers are lost",
        "a proxy drops them and hangs up",
        (
            *_rows(
                "network",
                "answers_that_are_lost_duplicate_nothing",
                "a_thousand_answers_that_are_lost_duplicate_nothing",
            ),
            f"{AT_ONCE}every_good_record_comes_out_once_in_order_and_every_bad_one_is_a_dead_letter",
        ),
    ),
    "F15": Row(
        "connections break",
        "a proxy",
        (
            *_rows(
                "network",
                "no_answer_is_taken_for_another_calls_however_connections_break",
                "no_answer_of_ten_thousand_is_taken_for_another_calls",
            ),
            "tests/contract/test_client.py::test_no_reply_is_ever_taken_for_another_calls",
        ),
    ),
    "F16": Row(
        "a slow network",
        "a proxy",
        _rows("network", "a_slow_network_moves_nothing", "a_network_that_stays_slow_moves_nothing"),
    ),
    "F17": Row(
        "failover to a replica",
        "Sentinel, Cluster, and two plain servers",
        (
            "tests/sentinel/test_failovers.py::test_no_failover_makes_two_owners_or_loses_anything_in_silence",
            "tests/sentinel/test_failovers.py::test_many_failovers",
            "tests/cluster/test_failovers.py::test_failovers_again_and_again",
            "tests/durability/test_failover.py::test_failovers_to_a_replica_lose_nothing_that_was_acknowledged",
            "tests/durability/test_failover.py::test_what_a_failover_without_durability_loses_is_reported_to_the_id",
        ),
    ),
    "F18": Row(
        "scripts are forgotten",
        "two workers",
        (
            *_rows("server", "scripts_that_are_forgotten_all_the_time_are_noticed_by_nobody"),
            f"{SCRIPTS}scripts_that_are_forgotten_all_the_time_still_run_once_each",
        ),
    ),
    "F19": Row(
        "memory is full",
        "two workers",
        (
            *_rows(
                "server",
                "full_memory_refuses_who_sends_and_loses_nothing_that_was_confirmed",
                "all_is_done_five_seconds_after_there_is_memory_again",
            ),
            "tests/contract/test_commit.py::test_a_commit_under_full_memory_is_all_or_nothing",
        ),
    ),
    "F20": Row(
        "no room for connections",
        "two workers",
        (
            *_rows("server", "a_server_without_room_for_connections_keeps_who_is_in_and_is_not_hammered"),
            "tests/contract/test_client.py::test_a_server_at_its_limit_of_connections_is_unavailable",
        ),
    ),
    "F21": Row(
        "the disk is full",
        "two workers",
        _rows(
            "server",
            "a_full_disk_stops_all_and_loses_nothing",
            "work_goes_on_three_seconds_after_there_is_disk_again",
        ),
    ),
    "F22": Row(
        "somebody's script runs on",
        "EVAL, SCRIPT KILL",
        (
            *_rows("server", "a_server_busy_with_a_script_of_somebody_is_waited_for"),
            "tests/contract/test_client.py::test_a_server_busy_with_a_script_is_unavailable",
        ),
    ),
    "F23": Row(
        "the membership is damaged",
        "SET",
        (
            *_rows(
                "data",
                "a_damaged_membership_is_mended_by_its_group_and_ends_nobody",
                "two_hundred_damaged_memberships_end_nobody",
                "a_damaged_membership_is_mended_in_time_at_default_settings",
                "a_membership_of_a_later_release_is_left_alone_and_damage_without_a_group_is_mended",
            ),
            "tests/contract/test_membership.py::test_a_document_of_somebody_else_is_not_overwritten",
        ),
    ),
    "F24": Row(
        "entries that are no records",
        "XADD",
        (
            *_rows(
                "data",
                "entries_that_are_no_records_hold_nobody_up",
                "a_thousand_entries_that_are_no_records_hold_nobody_up_for_a_second",
            ),
            "tests/security/test_fuzz.py::test_a_decoder_answers_or_raises_an_error_of_ours",
        ),
    ),
    "F25": Row(
        "keys of another type",
        "RENAME, and back",
        (
            *_rows(
                "data",
                "a_key_of_another_type_is_named_and_stops_no_other_partition",
                "no_key_of_any_other_type_stops_another_partition",
            ),
            f"{SCRIPTS}a_key_of_another_type_stops_a_script_before_it_writes",
        ),
    ),
    "F26": Row(
        "clocks are wrong",
        "as Python shows them",
        (
            *_rows("data", "workers_whose_clocks_are_wrong_do_what_the_others_do"),
            "tests/simulation/test_simulation.py::test_each_fault_alone_is_survived",
        ),
    ),
    "F27": Row(
        "many join at once",
        "5 processes",
        (
            *_rows("workers", "fifty_workers_that_join_at_once_come_to_one_assignment"),
            f"{MANY}workers_that_join_at_once_make_a_few_documents_and_not_one_each",
        ),
    ),
    "F28": Row(
        "a member comes and goes",
        "SIGTERM",
        _rows(
            "workers",
            "a_member_that_comes_and_goes_leaves_others_their_work",
            "a_member_that_comes_and_goes_for_minutes_costs_a_fifth_of_the_work_at_most",
        ),
    ),
    "F29": Row(
        "all go, and come back",
        "SIGTERM",
        _rows(
            "workers",
            "who_comes_back_to_an_empty_group_does_not_wait",
            "ten_thousand_records_that_waited_for_anybody_are_begun_within_a_second",
        ),
    ),
    "F30": Row(
        "more workers than partitions",
        "SIGKILL of one that works",
        (
            *_rows(
                "workers",
                "of_those_who_stand_by_one_takes_over",
                "eight_who_stand_by_take_over_in_time",
            ),
            f"{REBALANCES}workers_beyond_the_partitions_stand_by_and_one_takes_over",
        ),
    ),
    "F31": Row(
        "more partitions",
        "one declares more",
        (
            *_rows("workers", "a_worker_that_wants_more_partitions_is_refused_and_the_others_go_on"),
            "tests/rebalance/test_claims.py::test_partitions_that_are_added_are_claimed",
        ),
    ),
    "F32": Row(
        "two releases side by side",
        "joins, deaths and leaves",
        (
            *_rows("versions", "workers_of_two_releases_share_a_group_through_joins_deaths_and_leaves"),
            "tests/core/test_membership.py::test_a_document_of_another_format_names_both_formats",
        ),
    ),
    "F33": Row(
        "the control stream is lost",
        "DEL, XTRIM 0",
        _rows(
            "data",
            "members_agree_without_any_message",
            "members_agree_in_time_without_any_message_a_hundred_times",
        ),
    ),
    "F34": Row(
        "a source is deleted",
        "DEL, XADD",
        (
            *_rows(
                "data",
                "a_source_that_is_deleted_or_made_anew_lower_is_noticed_and_named",
                "every_source_of_many_that_vanishes_is_noticed_in_time",
            ),
            "tests/runtime/test_fetcher.py::test_a_deleted_stream_is_noticed",
        ),
    ),
    "F35": Row(
        "Spark's driver is killed",
        "SIGKILL in the middle of a batch",
        (
            "tests/spark/test_driver_killed.py::test_a_driver_killed_three_times_in_mid_batch_leaves_no_trace",
            "tests/spark/test_driver_killed.py::test_a_driver_killed_many_times_in_mid_batch_leaves_no_trace",
            "tests/spark/test_crash_images.py::test_whatever_a_killed_driver_leaves_the_next_one_goes_on_from_it",
        ),
    ),
    "F36": Row(
        "Spark's Python worker is killed",
        "SIGKILL of the process of a task",
        (
            "tests/spark/test_python_killed.py::test_a_killed_python_process_costs_a_restart_and_no_row",
            "tests/spark/test_python_killed.py::test_a_hundred_killed_python_processes_cost_restarts_and_no_row",
        ),
    ),
    "F37": Row(
        "Spark's checkpoint is lost",
        "removed between two runs",
        (
            "tests/spark/test_checkpoint_lost.py::test_a_table_of_files_is_not_written_on_from_another_checkpoint",
        ),
    ),
    "F38": Row(
        "the log is trimmed under Spark",
        "XTRIM and XDEL beyond its offset",
        (
            "tests/spark/test_trimmed.py::test_rows_that_were_trimmed_are_never_left_out_in_silence",
            "tests/spark/test_trimmed.py::test_five_thousand_trims_are_all_noticed",
            "tests/spark/test_source.py::test_trimmed_rows_that_were_not_read_end_the_query",
        ),
    ),
    "F39": Row(
        "two queries on one log",
        "one stands still for long",
        (
            "tests/spark/test_trimmed.py::test_trimming_waits_for_a_query_that_is_away_and_the_limit_says_so",
            "tests/contract/test_trim.py::test_the_slowest_reader_decides_about_the_acked_log",
            "tests/spark/test_source.py::test_a_reader_holds_its_place_before_it_has_read_anything",
        ),
    ),
    "F40": Row(
        "cut off one by one",
        "proxies",
        _rows(
            "network",
            "workers_that_are_cut_off_and_back_in_any_order_end_up_at_work",
            "a_hundred_rounds_of_cutting_off_in_any_order_end_with_all_at_work",
        ),
    ),
}
