//! Automata compared with the `aho-corasick` crate, and texts walked alone compared with texts walked together.

use aho_corasick::{AhoCorasick, MatchKind};
use proptest::prelude::*;
use sinew_store::lookup::patterns::{Automaton, Hit, Job, LANES, Pattern, PatternError, scan_all, scan_in_order};

/// Finds the expected hits with the aho-corasick crate, which ignores case, and drops those that case forbids.
fn expected(patterns: &[Pattern], text: &[u8]) -> Vec<Hit> {
    let all = AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::Standard)
        .build(patterns.iter().map(Pattern::bytes))
        .unwrap();
    let hits = all.find_overlapping_iter(text).filter(|hit| {
        let pattern = &patterns[hit.pattern().as_usize()];
        !pattern.is_exact() || &text[hit.range()] == pattern.bytes()
    });
    let mut hits: Vec<_> = hits.map(|hit| Hit { pattern: hit.pattern().as_u32(), end: hit.end() as u32 }).collect();
    hits.sort_by_key(|hit| (hit.end, hit.pattern));
    hits
}

fn sorted(mut hits: Vec<Hit>) -> Vec<Hit> {
    assert!(hits.is_sorted_by_key(|hit| hit.end), "hits in one text come in the order of their ends");
    hits.sort_by_key(|hit| (hit.end, hit.pattern));
    hits
}

fn alone(automaton: &Automaton, text: &[u8]) -> Vec<Hit> {
    let mut hits = Vec::new();
    automaton.scan(text, |hit| hits.push(hit));
    sorted(hits)
}

/// Few different bytes, so that patterns overlap, including some that fold to another case or look as if they did.
fn bytes(len: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(proptest::sample::select(&b"aAbBcz@[\0\xFF\xE1"[..]), len)
}

fn patterns() -> impl Strategy<Value = Vec<Pattern>> {
    let pattern = (bytes(1..6), any::<bool>())
        .prop_map(|(bytes, is_exact)| if is_exact { Pattern::exact(bytes) } else { Pattern::any_case(bytes) });
    proptest::collection::vec(pattern, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn all_is_found_that_another_finds(patterns in patterns(), text in bytes(0..60)) {
        let automaton = Automaton::new(patterns.clone()).unwrap();
        prop_assert_eq!(alone(&automaton, &text), expected(&patterns, &text));
    }

    #[test]
    fn texts_walked_at_once_have_the_same_hits(
        sets in proptest::collection::vec(patterns(), 1..4),
        texts in proptest::collection::vec((any::<usize>(), bytes(0..60)), 0..40),
        turn in any::<usize>(),
    ) {
        let automata: Vec<_> = sets.into_iter().map(|set| Automaton::new(set).unwrap()).collect();
        let jobs: Vec<_> =
            texts.iter().map(|(which, text)| Job { automaton: &automata[which % automata.len()], text }).collect();
        let order = (0..jobs.len()).map(|at| (at + turn % jobs.len().max(1)) % jobs.len());
        let mut hits = vec![Vec::new(); jobs.len()];
        scan_in_order(&jobs, order, |text, hit| hits[text].push(hit));
        for (job, hits) in jobs.iter().zip(hits) {
            prop_assert_eq!(sorted(hits), alone(job.automaton, job.text));
        }
    }
}

#[test]
fn an_automaton_of_many_states_finds_what_it_should() {
    // More than 65,536 states, so that the automaton is wide; a narrow one is used next to it.
    let number = |at: u32| at.wrapping_mul(0x9E37_79B9).to_be_bytes().map(|byte| byte | 0x80);
    let patterns: Vec<_> = (0..30_000).map(|at| Pattern::exact(number(at))).collect();
    let wide = Automaton::new(patterns.clone()).unwrap();
    assert!(wide.states() > 1 << 16, "{}", wide.states());
    let narrow = Automaton::new(patterns[..10].to_vec()).unwrap();
    let texts: Vec<Vec<u8>> = (0..50).map(|at| (at..at + 20).flat_map(number).collect()).collect();
    let jobs: Vec<_> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| Job { automaton: if at % 3 == 0 { &narrow } else { &wide }, text })
        .collect();
    let mut hits = vec![Vec::new(); jobs.len()];
    scan_all(&jobs, |text, hit| hits[text].push(hit));
    for ((job, hits), first) in jobs.iter().zip(hits).zip(0..) {
        let hits = sorted(hits);
        assert_eq!(hits, alone(job.automaton, job.text));
        let all = (first..first + 20).filter(|at| (*at as usize) < job.automaton.patterns().len());
        assert!(all.into_iter().all(|at| hits.iter().any(|hit| hit.pattern == at)), "text {first}");
    }
}

#[test]
fn texts_of_every_number_are_walked_to_their_end() {
    let automaton = Automaton::new([Pattern::exact(b"end")]).unwrap();
    for count in 0..3 * LANES {
        let texts: Vec<Vec<u8>> = (0..count).map(|at| [&vec![b'.'; at * 7 % 13][..], b"end"].concat()).collect();
        let jobs: Vec<_> = texts.iter().map(|text| Job { automaton: &automaton, text }).collect();
        let mut found = vec![0; count];
        scan_all(&jobs, |text, _| found[text] += 1);
        assert_eq!(found, vec![1; count]);
    }
}

#[test]
fn what_is_no_pattern_is_refused_and_none_are_none() {
    let empty = Automaton::new([Pattern::exact(b"a"), Pattern::exact(b"")]);
    assert_eq!(empty.unwrap_err(), PatternError::Empty { pattern: 1 });
    let none = Automaton::new([]).unwrap();
    assert_eq!((none.states(), alone(&none, b"anything")), (1, Vec::new()));
}
