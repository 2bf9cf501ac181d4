//! Short runs lead to what the papers recommend.

use super::*;

fn nic(name: &str) -> Profile {
    Profile::built_in(name).expect("it is built in")
}

/// Advice from a search of `runs` runs, not counting the first and last ones of each design.
fn advise_in(runs: usize, name: &str, workload: &Workload) -> Vec<Advice> {
    let mut left = runs;
    let all = advise(&nic(name), workload, &mut |part| {
        // The first and the last runs are no part of the search.
        let looks = part > 0.1 && part < 0.9;
        let keep_going = left > 0;
        left -= usize::from(looks && keep_going);
        !looks || keep_going
    });
    for it in &all.designs {
        let Outcome { rate_mops, times, .. } = it.outcome;
        eprintln!("{name}: {}: {rate_mops:.2} M/s, {times:?}, {:?}, {:?}", it.name, it.limit, it.plan.settings);
    }
    all.designs
}

fn of(all: &[Advice], design: Design) -> &Advice {
    all.iter().find(|it| it.plan.design == design).expect("it was run")
}

fn rate(all: &[Advice], design: Design) -> f64 {
    of(all, design).outcome.rate_mops
}

/// sigcomm14 5.3: 26 Mops, where FaRM reaches 17.2 and Pilaf 9.9.
#[test]
fn a_cache_of_small_items_on_connectx_3_should_be_herd() {
    let all = advise_in(12, "cx3", &Workload::of(WorkloadKind::Cache));
    assert_eq!(all[0].plan.design, Design::WriteSend);
    assert!((23.0..29.0).contains(&all[0].outcome.rate_mops));
    assert_eq!(all[0].trust.level, Level::Compared);
}

/// atc16 5.3.1: on ConnectX-3 small and large READs have similar rates; on Connect-IB small ones do not fill the link.
#[test]
fn one_large_read_is_better_on_connectx_3_and_two_small_ones_on_connect_ib() {
    let workload = Workload { object_bytes: 32, read_share: 1.0, ..Workload::of(WorkloadKind::Cache) };
    let [large, small] = [Chain::Neighbourhood, Chain::Entry].map(Design::Reads);
    let (cx3, cib) = (advise_in(0, "cx3", &workload), advise_in(0, "cib", &workload));
    assert!(rate(&cx3, large) > 1.5 * rate(&cx3, small));
    assert!(rate(&cib, small) > 1.05 * rate(&cib, large));
    assert_eq!((of(&cx3, small).limit.0, of(&cib, small).limit.0), (Limit::Responders, Limit::Responders));
}

/// atc16 4.2, Table 3: 122 M/s and 97.2 M/s by calls, 2.24 M/s by atomics.
#[test]
fn a_sequencer_should_be_calls_and_no_atomics() {
    let all = advise_in(0, "cib", &Workload::of(WorkloadKind::Sequencer));
    assert_eq!(all[0].plan.design, Design::HeaderOnly);
    let last = all.last().expect("there are designs");
    assert_eq!((last.plan.design, last.limit.0), (Design::Atomics(Placement::SameBits), Limit::AtomicLock));
    assert!(all[0].outcome.rate_mops > 40.0 * last.outcome.rate_mops);
}

/// atc16 5.4: 2.24 M/s with one lock of the NIC, 52 M/s with many; ConnectX-3 has only one.
#[test]
fn locks_should_have_different_low_bits_of_the_address() {
    let [spread, same] = [Placement::Spread, Placement::SameBits].map(Design::Atomics);
    let cib = advise_in(0, "cib", &Workload::of(WorkloadKind::Locks));
    assert!(rate(&cib, spread) > 10.0 * rate(&cib, same));
    assert!(of(&cib, spread).settings.iter().any(|it| it.text.contains("addresses differ in the 12 low bits")));
    let cx3 = advise_in(0, "cx3", &Workload { peers: 16, ..Workload::of(WorkloadKind::Locks) });
    assert!((rate(&cx3, spread) / rate(&cx3, same) - 1.0).abs() < 0.1);
}

/// apnet19 4.1: "if a system needs to fetch only a single small value from remote memory, then READ-Poll would provide
/// the best performance".
#[test]
fn a_lone_small_read_should_be_a_read_that_is_polled_for() {
    for name in ["cx3", "cx3-roce10"] {
        let all = advise_in(100, name, &Workload::of(WorkloadKind::Reads));
        let best = &all[0].plan;
        assert_eq!((best.design, best.settings.client_wait), (Design::Reads(Chain::Pointers), Wait::Poll), "{name}");
        assert!(all[0].settings.iter().any(|it| it.text.contains("poll the memory")));
    }
}

/// apnet19 4.2: applications that want low latency "will need to dynamically switch between polling and interrupts". A
/// READ waits for one processor, a compound read for two.
#[test]
fn on_busy_processors_clients_should_sleep_and_lone_reads_pass_the_servers() {
    let busy = Workload { client_cpu: CpuLoad::Busy, server_cpu: CpuLoad::Busy, ..Workload::of(WorkloadKind::Reads) };
    let all = advise_in(100, "cx3-roce10", &busy);
    let best = &all[0].plan;
    assert_eq!(best.design, Design::Reads(Chain::Pointers));
    assert_ne!(best.settings.client_wait, Wait::Poll);
    // Nothing tells a sleeping server of a WRITE.
    let written = of(&all, Design::WriteSend).outcome.times.expect("some were over");
    assert!(written.mean_ns > 10 * all[0].outcome.times.expect("some were over").mean_ns);
    assert!(all[0].trust.warnings.iter().any(|it| it.contains("busy processors")));
}

/// apnet19 4.2: on busy processors "a single compound read is significantly faster than performing even two dependent
/// READs". In the model this holds for servers that answer in batches. For servers that answer one request at a time,
/// on half of a slow core, the opposite does.
#[test]
fn on_busy_processors_two_dependent_reads_should_be_one_compound_request_of_servers_that_batch() {
    for batches in [true, false] {
        let busy = Workload {
            accesses: 2,
            peers: 16,
            client_cpu: CpuLoad::Busy,
            server_cpu: CpuLoad::Busy,
            goal: Goal::Throughput,
            batches,
            ..Workload::of(WorkloadKind::Reads)
        };
        let all = advise_in(8, "cx3-roce10", &busy);
        let is_compound = matches!(all[0].plan.design, Design::WriteSend | Design::SendSend);
        assert_eq!(is_compound, batches, "{}", all[0].name);
    }
}

/// nsdi19 4.1.2: half of the rate is lost with 5,000 connections.
#[test]
fn five_thousand_clients_should_send_datagrams() {
    let (cx5, many) = (nic("cx5"), Workload { peers: 5000, ..Workload::of(WorkloadKind::Cache) });
    let run = |design| search::run(&cx5, &many, design, Settings::first(design, &many, &cx5), 1);
    let (datagrams, connected) = (run(Design::SendSend), run(Design::WriteSend));
    assert!(datagrams.outcome.rate_mops > 1.5 * connected.outcome.rate_mops);
    let misses = |of: &search::Candidate| of.outcome.nics[1].0.responder_misses;
    assert!(misses(&connected) > 500 && misses(&datagrams) == 0, "{} and {}", misses(&connected), misses(&datagrams));
    let warnings = trust::trust(&datagrams.plan, &datagrams.outcome).warnings;
    assert!(warnings.iter().any(|it| it.contains("5000 clients")));
}

/// apnet19 4.1: "For objects that are 64 B or smaller, one-sided READs (READ-Intr-2) are faster than two-sided accesses
/// (WRITE/SEND-Poll) even if two messages are necessary", for servers that answer one request at a time. In the model
/// this holds up to 32 B. Above that it finds a setting that the paper does not consider: answers that are not inline
/// cost slow cores less. If all answers are inline, READs are level with calls, and take nothing of the server.
#[test]
fn without_batches_two_dependent_reads_on_idle_processors_should_be_reads_up_to_32_bytes() {
    let nic = nic("cx3-roce10");
    for (object_bytes, should_be_reads) in [(16, true), (32, true), (64, false)] {
        let idle = Workload {
            accesses: 2,
            object_bytes,
            goal: Goal::Throughput,
            batches: false,
            ..Workload::of(WorkloadKind::Reads)
        };
        let all = advise_in(100, "cx3-roce10", &idle);
        assert!(all.iter().all(|it| it.plan.settings.batch == 1));
        let first = all[0].plan.design;
        let expected = if should_be_reads { Design::Reads(Chain::Pointers) } else { Design::WriteSend };
        assert_eq!(first, expected, "{object_bytes} B");
        let calls = |window| {
            let first = Settings::first(Design::WriteSend, &idle, &nic);
            search::run(&nic, &idle, Design::WriteSend, Settings { window, ..first }, 2).outcome.rate_mops
        };
        let (inlined, reads) = (calls(1).max(calls(8)), rate(&all, Design::Reads(Chain::Pointers)));
        assert!((0.94..1.06).contains(&(inlined / reads)), "{object_bytes} B: {inlined} inlined, {reads} by READs");
    }
}

/// nsdi19 4.1.2: "NICs can cache only a few connections, and cache misses require expensive DMA reads". A server's NIC
/// has such misses for READs of many clients, too.
#[test]
fn five_thousand_clients_should_send_datagrams_for_lone_small_reads_too() {
    let cx5 = nic("cx5");
    let run = |design, goal, peers| {
        let workload = Workload { peers, object_bytes: 32, goal, ..Workload::of(WorkloadKind::Reads) };
        search::run(&cx5, &workload, design, Settings::first(design, &workload, &cx5), 1)
    };
    let reads = Design::Reads(Chain::Pointers);
    let [few, many] = [100, 5000]
        .map(|peers| [reads, Design::SendSend].map(|design| run(design, Goal::Throughput, peers).outcome.rate_mops));
    assert!(few[0] > few[1] && many[1] > 1.5 * many[0], "{few:?}, {many:?}");
    assert!(many[0] < 0.6 * few[0] && many[1] > 0.95 * few[1], "{few:?}, {many:?}");
    // If latency is the goal there is one client, whose connection stays in the cache; a warning says so.
    let is_warned = |design, peers| {
        let alone = run(design, Goal::Latency, peers);
        trust::trust(&alone.plan, &alone.outcome).warnings.iter().any(|it| it.contains("goal is latency"))
    };
    assert!(is_warned(reads, 5000) && !is_warned(reads, 64) && !is_warned(Design::SendSend, 5000));
}
