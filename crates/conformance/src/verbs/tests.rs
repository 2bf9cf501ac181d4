//! The suite on the model, and on models that break its rules.

mod model;
mod ud_port;

use std::time::Instant;

use sinew_fabric::verbs::Transport;

use super::{Expectations, Fixture, Promise};
use crate::verbs;
use model::{Flaw, Model, Options};

/// Devices of one world of the model.
struct Worlds(Model, Instant, Options, u64);

const PATIENCE_NS: u64 = 10_000_000_000;
/// Patience for facts that must fail, in nanoseconds.
const IMPATIENCE_NS: u64 = 250_000_000;

impl Worlds {
    fn new(options: Options) -> Self {
        Self(Model::new(options), Instant::now(), options, PATIENCE_NS)
    }

    fn flawed(flaw: Flaw) -> Self {
        let options = Options { flaw: Some(flaw), ..Options::PLAIN };
        Self(Model::new(options), Instant::now(), options, IMPATIENCE_NS)
    }
}

impl Fixture for Worlds {
    type Device = Model;

    fn device(&self) -> Model {
        self.0.clone()
    }

    fn now_ns(&self) -> u64 {
        self.1.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        let promise = |kept, reason| if kept { Promise::Kept } else { Promise::Not(reason) };
        Expectations {
            lossless: promise(!self.2.is_lossy, "the model was told to lose messages"),
            notices_death: promise(self.2.notices_death, "the model was told not to"),
            patience_ns: self.3,
            ..Expectations::default()
        }
    }
}

mod model_of_shared_memory {
    crate::verbs_tests!(super::Worlds::new(super::Options::PLAIN));
}

mod model_of_a_network {
    const OPTIONS: super::Options = super::Options {
        is_lossy: true,
        notices_death: false,
        reports_misfits: false,
        has_atomics: false,
        ..super::Options::PLAIN
    };
    crate::verbs_tests!(super::Worlds::new(OPTIONS));
}

/// A world in which the only transport loses messages.
struct Unreliable(Worlds, Transport);

impl Unreliable {
    fn flawed(flaw: Option<Flaw>, transport: Transport) -> Self {
        let options = Options { flaw, is_lossy: true, ..Options::PLAIN };
        Self(Worlds(Model::new(options), Instant::now(), options, PATIENCE_NS), transport)
    }
}

impl Fixture for Unreliable {
    type Device = Model;

    fn device(&self) -> Model {
        self.0.device()
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn expectations(&self) -> Expectations {
        let only =
            |transport| if transport == self.1 { Promise::Kept } else { Promise::Not("the model was told not to") };
        let [rc, uc, ud] = [Transport::Rc, Transport::Uc, Transport::Ud].map(only);
        Expectations { rc, uc, ud, ..self.0.expectations() }
    }
}

/// Tests that each flaw makes the fact fail that forbids it.
macro_rules! noticed {
    ($($name:ident: $flaw:ident by $fact:ident;)*) => {
        $(
            #[test]
            #[should_panic]
            fn $name() {
                verbs::$fact(&Worlds::flawed(Flaw::$flaw));
            }
        )*
    };
}

mod facts_notice {
    use super::*;

    #[test]
    #[should_panic(expected = "Uc: the message of round 0 woke nobody")]
    fn a_dark_descriptor_of_a_connection_that_loses_messages() {
        let fixture = Unreliable::flawed(Some(Flaw::LeavesDescriptorsDark), Transport::Uc);
        verbs::an_armed_queue_is_readable_once_a_completion_comes(&fixture);
    }

    #[test]
    #[should_panic(expected = "Ud: the message of round 0 woke nobody")]
    fn a_dark_descriptor_of_lost_datagrams() {
        let fixture = Unreliable::flawed(Some(Flaw::LeavesDescriptorsDark), Transport::Ud);
        verbs::an_armed_queue_is_readable_once_a_completion_comes(&fixture);
    }

    #[test]
    #[should_panic(expected = "Ud: round 0 was slept through")]
    fn a_missing_look_for_datagrams_that_can_be_lost() {
        let fixture = Unreliable::flawed(Some(Flaw::ArmsWithoutALook), Transport::Ud);
        verbs::a_completion_just_before_arming_is_not_slept_through(&fixture);
    }

    noticed! {
        corruption: CorruptsMessages by messages_of_every_length_arrive_intact;
        immediates_of_nobody: MakesUpImmediates by header_only_messages_carry_their_immediate;
        a_byte_too_much: WritesAByteMore by writes_of_every_length_land_where_they_were_aimed;
        a_receive_before_its_write: WritesAfterTheReceive by a_write_with_immediate_completes_a_receive;
        another_place_read: ReadsFromElsewhere by reads_of_every_length_bring_what_is_there;
        the_wrong_result: AtomicsReturnTheNewWord by an_atomic_returns_what_was_there;
        reads_on_uc: TakesReadsOnUc by what_a_transport_lacks_is_refused_and_disturbs_nothing;
        completions_out_of_order: CompletesOutOfOrder by requests_complete_in_the_order_pushed;
        receives_out_of_order: FillsTheLastReceive by messages_arrive_in_the_order_sent;
        messages_before_writes: WritesLate by what_was_written_is_there_when_a_later_message_arrives;
        reads_before_writes: WritesLate by a_read_brings_what_was_written_before_it;
        a_missing_fence: IgnoresFences by a_fenced_write_waits_for_the_read_before_it;
        too_much_inline: TakesMoreInline by both_sides_of_the_inline_limit;
        shares_that_go_early: CopiesWhenPushed by a_source_is_shared_until_its_request_is_over;
        shares_that_stay: KeepsSources by a_source_is_shared_until_its_request_is_over;
        shares_that_stay_for_ever: KeepsSources by a_source_can_be_read_and_posted_again_meanwhile;
        sources_that_change: ReadsThawedSources by a_source_that_thaws_is_not_read_any_more;
        pieces_out_of_order: GathersBackwards by a_source_is_gathered_from_its_pieces_in_order;
        buffers_that_stay_long: LeavesBuffersLong by a_message_is_scattered_over_the_buffers_in_order;
        pieces_too_many: TakesMorePieces by both_sides_of_the_limit_of_pieces;
        pieces_outside: TakesBadSlices by pieces_outside_their_buffer_are_refused;
        foreign_buffers: TakesForeignBuffers by buffers_of_a_foreign_arena_are_refused;
        arenas_alone: KnowsArenasAlone by registered_memory_is_read_and_written_where_it_lies;
        an_endless_registration: StaysRegistered by memory_is_foreign_again_when_its_registration_has_ended;
        another_part_read: ReadsFromElsewhere by reads_fill_parts_of_one_memory;
        vectors_forgotten: KnowsArenasAlone by reads_fill_parts_of_one_memory;
        a_byte_of_a_neighbour: WritesAByteMore by a_part_is_written_and_comes_back;
        a_registration_of_nobody: StaysRegistered by memory_is_not_given_back_while_a_part_is_out;
        foreign_ranges: TakesForeignBuffers by a_foreign_range_is_refused_and_given_back;
        ranges_kept: KeepsTargets by ranges_come_back_with_every_completion;
        too_much_told: TellsEverything by only_signaled_requests_are_told;
        failures_untold: KeepsFailuresToItself by failures_are_told_though_unsignaled;
        work_after_a_failure: GoesOnAfterAFailure by a_failure_flushes_what_is_behind_it;
        targets_kept: KeepsTargets by targets_come_back_though_unsignaled;
        one_too_many: TakesOneMore by a_queue_takes_exactly_its_depth;
        places_free_early: FreesPlacesEarly by places_are_held_until_a_completion_was_polled;
        an_early_start: StartsWhenPushed by nothing_starts_before_the_doorbell;
        a_list_too_long: TakesMoreInline by a_list_is_posted_up_to_what_is_refused;
        a_list_out_of_order: CompletesOutOfOrder by a_list_starts_in_order_behind_what_was_pushed;
        a_late_start: StartsOneAtATime by one_doorbell_starts_a_list;
        a_list_that_goes_on: GoesOnAfterAFailure by a_list_of_reads_brings_back_every_buffer;
        foreign_buffers_in_a_list: TakesForeignBuffers by a_list_of_reads_brings_back_every_buffer;
        a_byte_beyond: WritesAByteMore by writes_at_once_are_there_and_the_others_can_be_posted;
        one_region_for_all: WritesToTheFirstRegion by writes_of_a_list_go_each_to_its_own_region;
        impatience: FailsWithoutReceive by a_reliable_message_waits_for_a_receive;
        endless_patience: WaitsForEver by a_receiver_that_is_never_ready_is_given_up;
        what_should_be_dropped: KeepsUnreliableMessages by an_unreliable_message_without_a_receive_is_dropped;
        a_cut_message: CutsLongMessages by a_message_longer_than_its_buffers_fails_at_both_ends;
        a_cut_datagram: CutsLongMessages by an_unreliable_message_longer_than_its_buffers_is_not_delivered;
        forbidden_access: IgnoresAccess by accesses_that_are_not_allowed_are_refused;
        missing_bounds: IgnoresBounds by accesses_out_of_bounds_are_refused;
        unchecked_keys: IgnoresKeys by made_up_keys_are_refused;
        another_domain: IgnoresDomains by memory_of_another_domain_is_refused;
        an_endless_exposure: StaysExposed by memory_that_is_no_longer_exposed_is_refused;
        forbidden_unreliable_writes: IgnoresAccess by unreliable_writes_that_are_not_allowed_write_nothing;
        old_contents: ExposesWhatWasThere by exposed_memory_begins_as_zeros;
        misalignment: TakesMisalignedAtomics by misaligned_atomics_and_short_targets_are_refused;
        lost_additions: LosesAdditions by concurrent_additions_lose_none;
        many_winners: SwapsAlways by one_of_many_swaps_wins;
        split_atomics: SplitsAtomics by remote_and_local_atomics_are_one;
        torn_words: TearsWords by words_never_tear;
        the_last_word_first: WritesInDescendingOrder by a_write_appears_in_ascending_order;
        unchecked_states: TakesEverythingAlways by a_queue_pair_takes_only_what_its_state_allows;
        unchecked_transitions: GoesAnywhere by transitions_out_of_order_are_refused;
        unchecked_addresses: ConnectsToAnything by a_connection_needs_the_address_of_its_peer;
        early_deafness: IsDeafUntilReadyToSend by a_queue_pair_that_is_ready_to_receive_receives;
        receives_that_are_not_flushed: FlushesRequestsOnly by an_error_flushes_both_queues;
        a_forgetful_reset: ForgetsWhenReset by a_reset_flushes_both_queues_and_begins_anew;
        former_peers: HearsFormerPeers by a_queue_pair_hears_nothing_of_an_earlier_connection;
        reach_beyond_error: ReachesPeersInError by requests_to_a_peer_in_error_fail;
        mistaken_identity: NamesTheWrongQueuePair by queue_pairs_share_a_completion_queue;
        the_wrong_queue: CompletesReceivesWithRequests by requests_and_receives_complete_where_they_were_told_to;
        overbooking: Overbooks by a_completion_queue_is_not_overbooked;
        a_greedy_poll: PollsTooMuch by a_poll_takes_no_more_than_it_may;
        missing_senders: ForgetsSenders by many_datagrams_come_to_one_queue_pair;
        answers_gone_astray: AnswersToItself by an_answer_goes_back_to_the_sender;
        forgotten_senders: ForgetsSenders by a_datagram_to_oneself_arrives;
        unchecked_qkeys: IgnoresQkeys by datagrams_with_the_wrong_key_are_dropped;
        long_datagrams: SendsLongDatagrams by datagrams_over_the_mtu_are_refused;
        missing_destinations: NeedsNoDestination by datagrams_need_a_destination_and_connections_take_none;
        unchecked_destinations: FindsAnybody by an_address_that_is_none_is_no_destination;
        an_overlooked_death: OverlooksDeath by a_peer_that_goes_ends_its_peers_work;
        service_of_the_dead: ServesTheDead by a_peer_that_goes_takes_its_memory_with_it;
        service_of_nobody: ServesTheDead by a_peer_that_was_never_there_is_refused_or_given_up;
        failing_datagrams: FailsDatagramsToNobody by datagrams_to_nobody_do_no_harm;
        a_long_sleep: Oversleeps by a_wait_keeps_its_timeout;
        oversleeping: SleepsOn by a_wait_ends_when_a_completion_is_there;
        lost_wake_ups: LosesWakes by a_wake_before_the_wait_is_not_lost;
        ignored_wake_ups: IgnoresWakes by wakes_from_another_thread_are_not_lost;
        oversleeping_threads: SleepsOn by a_completion_wakes_a_sleeping_thread;
        a_dark_descriptor: LeavesDescriptorsDark by an_armed_queue_is_readable_once_a_completion_comes;
        an_endless_alarm: StaysReadable by a_waker_makes_an_armed_queue_readable;
        a_missing_look: ArmsWithoutALook by a_completion_just_before_arming_is_not_slept_through;
        wake_ups_of_nobody: IgnoresWakes by a_waker_makes_an_armed_queue_readable;
        darkness_at_both_queues: LeavesDescriptorsDark by a_thread_sleeps_on_both_queues_at_once;
        lost_room: LosesRoom by room_of_a_dropped_queue_pair_is_used_again;
        voices_of_the_dead: TellsOfTheDead by room_of_a_dropped_queue_pair_is_used_again;
        threads_corrupted: CorruptsMessages by threads_exchange_messages;
        exposure_without_end: StaysExposed by memory_does_not_change_after_its_exposure_ended;
    }
}
