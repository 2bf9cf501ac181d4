//! Tests of the space, compared with a table of pages.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Reserved(u64, Purpose),
    KeptBack(u64),
    Used,
}

#[derive(Clone, Debug)]
enum Step {
    Add(u32),
    Remove(u32),
    Open(u32, bool),
    Reserve(u64, Purpose, u32),
    Commit(u64, Pages),
    GiveBack(u64, Pages),
    Take(Pages),
    Free(Pages),
    KeepBack(u64),
    Release(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let client = || 1_u64..4;
    let pages = || (0_u32..4, 0_u32..40, 0_u32..12).prop_map(|(segment, first, count)| Pages { segment, first, count });
    prop_oneof![
        2 => (0_u32..4).prop_map(Step::Add),
        1 => (0_u32..4).prop_map(Step::Remove),
        1 => (0_u32..4, any::<bool>()).prop_map(|(segment, open)| Step::Open(segment, open)),
        4 => (client(), any::<bool>(), 0_u32..50).prop_map(|(client, overwrites, pages)| {
            Step::Reserve(client, if overwrites { Purpose::Overwrite } else { Purpose::Any }, pages)
        }),
        4 => (client(), pages()).prop_map(|(client, pages)| Step::Commit(client, pages)),
        2 => (client(), pages()).prop_map(|(client, pages)| Step::GiveBack(client, pages)),
        2 => pages().prop_map(Step::Take),
        4 => pages().prop_map(Step::Free),
        1 => client().prop_map(Step::KeepBack),
        1 => client().prop_map(Step::Release),
    ]
}

type Model = BTreeMap<(u32, u32), State>;

/// Changes pages from one state to another, if all are in the first. Returns whether they were.
fn change_state(model: &mut Model, pages: Pages, from: State, to: State) -> bool {
    let keys: Vec<_> = (pages.first..pages.first + pages.count).map(|page| (pages.segment, page)).collect();
    let all = pages.count > 0 && keys.iter().all(|key| model.get(key) == Some(&from));
    if all {
        model.extend(keys.into_iter().map(|key| (key, to)));
    }
    all
}

fn count(model: &Model, state: State) -> u64 {
    model.values().filter(|other| **other == state).count() as u64
}

/// Changes pages that a client has reserved, if it has all of them for one purpose.
fn change_reserved(model: &mut Model, pages: Pages, client: u64, to: State) -> bool {
    PURPOSES.into_iter().any(|purpose| change_state(model, pages, State::Reserved(client, purpose), to))
}

fn reserved(model: &Model, client: u64) -> u64 {
    PURPOSES.into_iter().map(|purpose| count(model, State::Reserved(client, purpose))).sum()
}

const PURPOSES: [Purpose; 2] = [Purpose::Any, Purpose::Overwrite];

proptest! {
    #[test]
    fn pages_are_as_in_a_table_of_them(steps in prop::collection::vec(step(), 1..100)) {
        const LEN: u32 = 40;
        let (mut space, mut model, mut closed) = (Space::default(), Model::new(), Vec::new());
        let mut kept: BTreeMap<u64, Vec<Pages>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(segment) => {
                    if !model.contains_key(&(segment, 0)) {
                        space.add(segment, LEN);
                        model.extend((0..LEN).map(|page| ((segment, page), State::Free)));
                        closed.retain(|other| *other != segment);
                        // A segment's number is never reused in practice, but it is here.
                        kept.values_mut().for_each(|kept| kept.retain(|pages| pages.segment != segment));
                    }
                }
                Step::Remove(segment) => {
                    space.remove(segment);
                    model.retain(|(other, _), _| *other != segment);
                }
                Step::Open(segment, is_open) => {
                    space.set_open(segment, is_open);
                    closed.retain(|other| *other != segment);
                    if !is_open {
                        closed.push(segment);
                    }
                }
                Step::Reserve(client, purpose, pages) => {
                    let open = |key: &(u32, u32)| !closed.contains(&key.0);
                    let free = model.iter().filter(|(key, state)| open(key) && **state == State::Free).count();
                    let runs = space.reserve(client, purpose, pages);
                    prop_assert_eq!(runs.iter().map(|run| run.count as usize).sum::<usize>(), free.min(pages as usize));
                    for run in runs {
                        prop_assert!(!closed.contains(&run.segment));
                        prop_assert!(change_state(&mut model, run, State::Free, State::Reserved(client, purpose)));
                        prop_assert!(space.has_reserved(client, [run]) && !space.has_reserved(client, [run, run]));
                        prop_assert_eq!(space.is_for_overwrites(client, run), purpose == Purpose::Overwrite);
                    }
                }
                Step::Commit(client, pages) => {
                    let done = change_reserved(&mut model, pages, client, State::Used);
                    prop_assert_eq!(space.commit(client, pages).is_ok(), done);
                }
                Step::GiveBack(client, pages) => {
                    let done = change_reserved(&mut model, pages, client, State::Free);
                    prop_assert_eq!(space.give_back(client, pages).is_ok(), done);
                }
                Step::Take(pages) => {
                    let done = change_state(&mut model, pages, State::Free, State::Used);
                    prop_assert_eq!(space.take(pages).is_ok(), done);
                }
                Step::Free(pages) => {
                    let done = change_state(&mut model, pages, State::Used, State::Free);
                    prop_assert_eq!(space.free(pages).is_ok(), done);
                }
                Step::KeepBack(client) => {
                    let pages = space.keep_back(client);
                    for run in &pages {
                        prop_assert!(change_reserved(&mut model, *run, client, State::KeptBack(client)));
                    }
                    prop_assert_eq!(reserved(&model, client), 0);
                    kept.entry(client).or_default().extend(pages);
                }
                Step::Release(client) => {
                    space.release(&kept.remove(&client).unwrap_or_default());
                    model.values_mut().filter(|state| **state == State::KeptBack(client)).for_each(|state| *state = State::Free);
                }
            }
            for client in 1..4 {
                prop_assert_eq!(space.reserved_pages(client), reserved(&model, client));
            }
            let overwriting = (1..4).map(|client| count(&model, State::Reserved(client, Purpose::Overwrite))).sum::<u64>();
            prop_assert_eq!(space.overwriting_pages(), overwriting);
            prop_assert_eq!(space.pages(), model.len() as u64);
            let free = model.iter().filter(|(key, state)| !closed.contains(&key.0) && **state == State::Free).count();
            prop_assert_eq!(space.free_pages(), free as u64);
            let used = model.iter().filter(|(key, state)| key.0 == 1 && **state == State::Used).count() as u64;
            let all = model.range((1, 0)..(2, 0)).count() as u64;
            prop_assert_eq!(space.unused(1), all - used);
            let (mut told, mut from) = (Vec::new(), 0);
            while let Some((first, count)) = space.used(1, from, 7) {
                prop_assert!(count <= 7);
                told.extend(first..first + count);
                from = first + count;
            }
            let used = model.range((1, 0)..(2, 0)).filter(|(_, state)| **state == State::Used);
            prop_assert_eq!(told, used.map(|((_, page), _)| *page).collect::<Vec<_>>());
        }
    }
}

#[test]
fn what_fits_in_a_row_comes_in_a_row_and_reservations_go_round() {
    let mut space = Space::default();
    (0..2).for_each(|segment| space.add(segment, 100));
    space.take(Pages { segment: 0, first: 10, count: 1 }).unwrap();
    assert_eq!(space.reserve(1, Purpose::Any, 50), [Pages { segment: 0, first: 11, count: 50 }]);
    assert_eq!(space.reserve(1, Purpose::Any, 50), [Pages { segment: 1, first: 0, count: 50 }]);
    assert_eq!(space.reserve(1, Purpose::Any, 1000).iter().map(|run| run.count).sum::<u32>(), 99);
    assert_eq!(space.reserve(1, Purpose::Any, 1), []);
}

#[test]
fn a_reservation_is_of_no_more_segments_than_one_answer_tells_of() {
    let mut space = Space::default();
    (0..SEGMENTS_MAX as u32 + 5).for_each(|segment| space.add(segment, 1));
    let runs = space.reserve(1, Purpose::Any, 4000);
    assert_eq!((runs.len(), space.reserved_pages(1)), (SEGMENTS_MAX, SEGMENTS_MAX as u64));
    assert_eq!((space.reserve(1, Purpose::Any, 4000).len(), space.free_pages()), (5, 0));
}
