//! One suite of facts that every verbs device must satisfy, whatever carries its operations.
//!
//! A backend writes a [`Fixture`], which gives devices that reach each other, and instantiates the suite:
//!
//! ```text
//! sinew_conformance::verbs_tests!(MyFixture::new());
//! ```
//!
//! This makes a `#[test]` of each fact; [`run_all`] runs them all in one. The expression is evaluated for each fact.
//! The facts are plain functions: where a backend leaves out one that its device cannot satisfy, the omission is
//! visible. What a whole fabric does not promise is stated in [`Expectations`], with the reason.
//!
//! Most facts have two queue pairs, the *near* one, which asks, and the *far* one, each with a device and a thread
//! domain of its own, and one thread that looks after both. Nothing spins: a fact that expects a completion waits on a
//! completion queue until the fixture's patience, by the fixture's clock, runs out. If time is real, some facts use
//! threads; if a fixture can start processes, some use those.

mod atomics;
mod completion_queues;
mod datagrams;
mod death;
mod dropping;
mod ends;
mod operations;
mod order;
mod processes;
mod protection;
mod queues;
mod ranges;
mod readiness;
mod receivers;
mod registered;
mod sources;
mod states;
#[cfg(test)]
mod tests;
mod threads;
mod waiting;

use std::process::Command;

use sinew_fabric::verbs::{Device, Transport};

pub use atomics::*;
pub use completion_queues::*;
pub use datagrams::*;
pub use death::*;
pub use dropping::*;
pub use operations::*;
pub use order::*;
pub use processes::*;
pub use protection::*;
pub use queues::*;
pub use ranges::*;
pub use readiness::*;
pub use receivers::*;
pub use registered::*;
pub use sources::*;
pub use states::*;
pub use threads::*;
pub use waiting::*;

/// Whether a fabric promises something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It promises this.
    Kept,
    /// It does not, for this reason. Facts that need the promise are left out, and report that.
    Not(&'static str),
}

impl Promise {
    /// Whether the promise holds; if it does not, reports on standard error that `what` is left out.
    fn holds_or_report(self, what: &str) -> bool {
        if let Self::Not(reason) = self {
            eprintln!("left out: {what}: {reason}");
        }
        self == Self::Kept
    }
}

/// Promises of a fixture's fabric.
#[derive(Clone, Copy, Debug)]
pub struct Expectations {
    /// It has reliable connections.
    pub rc: Promise,
    /// It has unreliable connections.
    pub uc: Promise,
    /// It has unreliable datagrams.
    pub ud: Promise,
    /// Messages over an unreliable transport arrive if a receive is posted for them. Contents and order are checked all
    /// the same.
    pub lossless: Promise,
    /// The clock runs by itself, and the device can be used from several threads.
    pub real_time: Promise,
    /// A connected queue pair learns that its peer is gone even if it sends nothing.
    pub notices_death: Promise,
    /// Failures have the statuses that the InfiniBand specification gives them, and not just any.
    pub standard_statuses: Promise,
    /// A message that does not fit in its receive fails at both ends with the statuses for that, and no others.
    pub length_errors: Promise,
    /// A UC queue pair can tell its peer from earlier peers.
    pub knows_its_peer: Promise,
    /// An aligned word of 8 bytes appears whole, whether it is written or read.
    pub whole_words: Promise,
    /// A WRITE appears in ascending order of addresses.
    pub ascending_writes: Promise,
    /// Remote atomics are atomic with respect to the owner's processor too, and not just to each other.
    pub processor_atomics: Promise,
    /// Time allowed for anything that must happen, in nanoseconds. Only failures take that long.
    pub patience_ns: u64,
}

impl Default for Expectations {
    fn default() -> Self {
        Self {
            rc: Promise::Kept,
            uc: Promise::Kept,
            ud: Promise::Kept,
            lossless: Promise::Kept,
            real_time: Promise::Kept,
            notices_death: Promise::Kept,
            standard_statuses: Promise::Kept,
            length_errors: Promise::Kept,
            knows_its_peer: Promise::Kept,
            whole_words: Promise::Kept,
            ascending_writes: Promise::Kept,
            processor_atomics: Promise::Kept,
            patience_ns: 10_000_000_000,
        }
    }
}

/// Source of the devices that the facts are checked on.
pub trait Fixture {
    /// The device under test.
    type Device: Device;

    /// A device that reaches this fixture's other devices. It can be the same one each time.
    fn device(&self) -> Self::Device;

    /// Time on the clock by which waits are measured, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Promises of this fabric.
    fn expectations(&self) -> Expectations;

    /// A command that starts a process in which [`serve_peer`] runs, on a device that reaches this fixture's.
    ///
    /// # Errors
    ///
    /// The reason why there is no such command.
    fn peer_process(&self) -> Result<Command, &'static str> {
        Err("the fixture starts no processes")
    }
}

/// The transports that the fixture's devices have.
fn transports<F: Fixture>(fixture: &F) -> Vec<Transport> {
    let Expectations { rc, uc, ud, .. } = fixture.expectations();
    let promises = [(Transport::Rc, rc), (Transport::Uc, uc), (Transport::Ud, ud)];
    promises
        .into_iter()
        .filter(|(transport, promise)| promise.holds_or_report(&format!("{transport:?}")))
        .map(|(it, _)| it)
        .collect()
}

/// Those of the transports that are connected.
fn connected<F: Fixture>(fixture: &F) -> Vec<Transport> {
    transports(fixture).into_iter().filter(|transport| transport.is_connected()).collect()
}

/// RC, if the devices have it.
fn reliable<F: Fixture>(fixture: &F) -> Option<Transport> {
    transports(fixture).into_iter().find(|&transport| transport == Transport::Rc)
}

/// UD, if the devices have it.
fn datagrams<F: Fixture>(fixture: &F) -> Option<Transport> {
    transports(fixture).into_iter().find(|&transport| transport == Transport::Ud)
}

/// The list of facts, written once. It is passed to a macro, after that macro's own arguments.
#[doc(hidden)]
#[macro_export]
macro_rules! __verbs_facts {
    ($consumer:path, $($arguments:tt)*) => {
        $consumer! { $($arguments)*;
            attributes_make_sense
            messages_of_every_length_arrive_intact
            header_only_messages_carry_their_immediate
            writes_of_every_length_land_where_they_were_aimed
            a_write_with_immediate_completes_a_receive
            reads_of_every_length_bring_what_is_there
            an_atomic_returns_what_was_there
            what_a_transport_lacks_is_refused_and_disturbs_nothing
            queue_pairs_of_one_thread_reach_each_other

            requests_complete_in_the_order_pushed
            messages_arrive_in_the_order_sent
            what_was_written_is_there_when_a_later_message_arrives
            a_read_brings_what_was_written_before_it
            a_fenced_write_waits_for_the_read_before_it
            atomics_of_one_queue_pair_take_effect_in_order

            inline_bytes_are_copied_when_they_are_pushed
            both_sides_of_the_inline_limit
            a_source_is_shared_until_its_request_is_over
            a_source_can_be_read_and_posted_again_meanwhile
            a_source_that_thaws_is_not_read_any_more
            a_source_is_gathered_from_its_pieces_in_order
            a_message_is_scattered_over_the_buffers_in_order
            both_sides_of_the_limit_of_pieces
            pieces_outside_their_buffer_are_refused
            buffers_of_a_foreign_arena_are_refused
            registered_memory_is_read_and_written_where_it_lies
            registered_memory_is_not_given_back_while_it_is_out
            memory_is_foreign_again_when_its_registration_has_ended
            memory_that_is_registered_outlives_its_arena

            reads_fill_parts_of_one_memory
            a_part_is_written_and_comes_back
            memory_is_not_given_back_while_a_part_is_out
            a_foreign_range_is_refused_and_given_back
            ranges_come_back_with_every_completion

            only_signaled_requests_are_told
            failures_are_told_though_unsignaled
            a_failure_flushes_what_is_behind_it
            targets_come_back_though_unsignaled
            a_queue_takes_exactly_its_depth
            places_are_held_until_a_completion_was_polled
            receives_fill_exactly_their_queue
            a_queue_pair_larger_than_the_device_is_refused
            nothing_starts_before_the_doorbell
            a_list_is_posted_up_to_what_is_refused
            a_list_starts_in_order_behind_what_was_pushed
            one_doorbell_starts_a_list
            a_list_of_reads_brings_back_every_buffer
            writes_at_once_are_there_and_the_others_can_be_posted
            writes_of_a_list_go_each_to_its_own_region

            a_reliable_message_waits_for_a_receive
            a_receiver_that_is_never_ready_is_given_up
            an_unreliable_message_without_a_receive_is_dropped
            a_message_longer_than_its_buffers_fails_at_both_ends
            an_unreliable_message_longer_than_its_buffers_is_not_delivered

            accesses_that_are_not_allowed_are_refused
            accesses_out_of_bounds_are_refused
            made_up_keys_are_refused
            memory_of_another_domain_is_refused
            memory_that_is_no_longer_exposed_is_refused
            unreliable_writes_that_are_not_allowed_write_nothing
            exposed_memory_begins_as_zeros

            misaligned_atomics_and_short_targets_are_refused
            concurrent_additions_lose_none
            one_of_many_swaps_wins
            remote_and_local_atomics_are_one
            words_never_tear
            a_write_appears_in_ascending_order

            a_queue_pair_takes_only_what_its_state_allows
            transitions_out_of_order_are_refused
            a_connection_needs_the_address_of_its_peer
            a_queue_pair_that_is_ready_to_receive_receives
            an_error_flushes_both_queues
            a_reset_flushes_both_queues_and_begins_anew
            a_queue_pair_hears_nothing_of_an_earlier_connection
            requests_to_a_peer_in_error_fail

            queue_pairs_share_a_completion_queue
            requests_and_receives_complete_where_they_were_told_to
            a_completion_queue_is_not_overbooked
            a_poll_takes_no_more_than_it_may

            many_datagrams_come_to_one_queue_pair
            messages_are_shown_and_their_receives_stay_posted
            an_answer_goes_back_to_the_sender
            a_datagram_to_oneself_arrives
            datagrams_with_the_wrong_key_are_dropped
            datagrams_over_the_mtu_are_refused
            datagrams_need_a_destination_and_connections_take_none
            an_address_that_is_none_is_no_destination
            made_up_destinations_do_no_harm

            a_peer_that_goes_ends_its_peers_work
            a_peer_that_goes_takes_its_memory_with_it
            a_peer_that_was_never_there_is_refused_or_given_up
            datagrams_to_nobody_do_no_harm

            a_wait_keeps_its_timeout
            a_wait_ends_when_a_completion_is_there
            a_wake_before_the_wait_is_not_lost
            wakes_from_another_thread_are_not_lost
            a_completion_wakes_a_sleeping_thread
            a_waker_outlives_its_completion_queue

            an_armed_queue_is_readable_once_a_completion_comes
            a_completion_just_before_arming_is_not_slept_through
            a_waker_makes_an_armed_queue_readable
            a_thread_sleeps_on_both_queues_at_once
            a_descriptor_outlives_its_completion_queue

            everything_can_be_dropped_in_every_order
            buffers_outlive_what_they_were_posted_to
            a_dropped_queue_pair_writes_no_more_buffers
            a_forgotten_queue_pair_leaves_others_alone
            room_of_a_dropped_queue_pair_is_used_again
            completions_of_a_dropped_queue_pair_go

            threads_exchange_messages
            memory_does_not_change_after_its_exposure_ended

            operations_work_between_processes
            a_killed_peer_ends_its_peers_work
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __verbs_facts_as_tests {
    ($fixture:expr; $($fact:ident)*) => {
        $(
            #[test]
            fn $fact() {
                $crate::verbs::$fact(&$fixture);
            }
        )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __verbs_facts_in_turn {
    ($fixture:expr; $($fact:ident)*) => {
        $( $crate::verbs::$fact($fixture); )*
    };
}

/// Makes a test of each fact of the [suite](crate::verbs). The expression makes a new fixture for each.
#[macro_export]
macro_rules! verbs_tests {
    ($fixture:expr) => {
        $crate::__verbs_facts!($crate::__verbs_facts_as_tests, $fixture);
    };
}

/// Checks every fact, one after the other.
///
/// # Panics
///
/// At the first fact that does not hold.
pub fn run_all<F: Fixture>(fixture: &F) {
    crate::__verbs_facts!(crate::__verbs_facts_in_turn, fixture);
}
