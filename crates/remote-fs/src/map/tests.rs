//! Tests of maps, compared with a table of pages.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Segment, page, checksum and length of each page.
type Model = BTreeMap<u64, (u32, u32, u64, u16)>;

#[derive(Clone, Debug)]
enum Step {
    Put { at: u64, count: u32 },
    Punch { at: u64, count: u64 },
    Cut { len: u64 },
    Allocate { at: u64, count: u64 },
    Store,
}

fn step() -> impl Strategy<Value = Step> {
    let at = prop_oneof![0_u64..200, 60_u64..70];
    prop_oneof![
        4 => (at.clone(), 1_u32..90).prop_map(|(at, count)| Step::Put { at, count }),
        2 => (at.clone(), 1_u64..90).prop_map(|(at, count)| Step::Punch { at, count }),
        2 => (at, 1_u64..90).prop_map(|(at, count)| Step::Allocate { at, count }),
        2 => (0_u64..300 * PAGE as u64).prop_map(|len| Step::Cut { len }),
        1 => (0_u64..300).prop_map(|page| Step::Cut { len: page * PAGE as u64 }),
        1 => Just(Step::Store),
    ]
}

fn of_runs(runs: &[Run]) -> Model {
    let mut model = Model::new();
    for run in runs {
        for index in 0..run.pages.count {
            let len = if index + 1 == run.pages.count { run.last_len } else { PAGE as u16 };
            let page = (run.pages.segment, run.pages.first + index, run.sums.0[index as usize], len);
            assert!(model.insert(run.at + u64::from(index), page).is_none(), "told twice");
        }
    }
    model
}

fn of_freed(freed: &[Pages]) -> Vec<(u32, u32)> {
    let mut pages: Vec<_> = freed
        .iter()
        .flat_map(|pages| (0..pages.count).map(move |index| (pages.segment, pages.first + index)))
        .collect();
    pages.sort_unstable();
    pages
}

proptest! {
    #[test]
    fn a_map_is_as_a_table_of_its_pages(steps in prop::collection::vec(step(), 1..60), asked in 0_u64..280) {
        let (mut map, mut model, mut next) = (Map::default(), Model::new(), 0);
        // Every page that room was promised to, stored or not.
        let mut promised = BTreeSet::new();
        for step in steps {
            let (mut freed, mut gone) = (Vec::new(), Vec::new());
            let mut take = |page: (u32, u32, u64, u16)| gone.push((page.0, page.1));
            match step {
                Step::Put { at, count } => {
                    // A gap before every third one, so that not all runs are contiguous.
                    next += u32::from(next % 3 == 0);
                    let pages = Pages { segment: 1 + next / 1000, first: next, count };
                    let sums = Sums((0..count).map(|index| u64::from(next + index) + 7).collect());
                    map.put(at, pages, &sums, &mut freed);
                    for (index, sum) in (0..count).zip(&sums.0) {
                        let page = (pages.segment, next + index, *sum, PAGE as u16);
                        model.insert(at + u64::from(index), page).map(&mut take);
                    }
                    next += count;
                    prop_assert!(map.has(at, &sums));
                }
                Step::Punch { at, count } => {
                    map.punch(at, at + count, &mut freed);
                    promised.retain(|page| !(at..at + count).contains(page));
                    (at..at + count).filter_map(|at| model.remove(&at)).for_each(&mut take);
                }
                Step::Cut { len } => {
                    map.cut(len, &mut freed);
                    promised.retain(|page| *page < len.div_ceil(PAGE as u64));
                    model.split_off(&len.div_ceil(PAGE as u64)).into_values().for_each(&mut take);
                    let bytes = (len % PAGE as u64) as u16;
                    if let Some(page) = model.get_mut(&(len / PAGE as u64)).filter(|_| bytes > 0) {
                        page.3 = page.3.min(bytes);
                    }
                }
                Step::Allocate { at, count } => {
                    map.allocate(at, at + count);
                    promised.extend(at..at + count);
                }
                Step::Store => {
                    let bytes = postcard::to_allocvec(&map).unwrap();
                    prop_assert_eq!(&postcard::from_bytes::<Map>(&bytes).unwrap(), &map);
                }
            }
            gone.sort_unstable();
            prop_assert_eq!(of_freed(&freed), gone);
            prop_assert_eq!(of_runs(&map.all()), model.clone());
            prop_assert_eq!(map.pages(), model.len() as u64);
            promised.retain(|page| !model.contains_key(page));
            prop_assert_eq!(map.allocated_pages(), promised.len() as u64);
            let lacks = |page: &u64| !model.contains_key(page) && !promised.contains(page);
            prop_assert_eq!(map.lacking(asked, asked + 50), (asked..asked + 50).filter(lacks).count() as u64);
            let name = |at| model.get(&at).map_or(0, |page| contents_name(page.2, page.3.into()));
            prop_assert!(map.has(asked, &Sums((asked..asked + 5).map(name).collect())));
            let (mut visited, mut next) = (Vec::new(), Some(0));
            while let Some(at) = next {
                next = map.visit(at, 2, |segment, page, sum| visited.push((segment, page, sum))).1;
            }
            prop_assert_eq!(visited, model.values().map(|page| (page.0, page.1, page.2)).collect::<Vec<_>>());
            prop_assert_eq!(map.next_stored(asked), model.range(asked..).next().map(|(at, _)| *at));
            let (runs, until) = map.runs(asked, 280, |_| false);
            prop_assert!(runs.len() <= 1 && (until == 280 || runs.len() == 1));
            let stored: Model = model.range(asked.min(until)..until).map(|(at, page)| (*at, *page)).collect();
            prop_assert_eq!(of_runs(&runs), stored);
        }
    }
}

#[test]
fn the_last_pages_that_there_can_be_are_pages_like_others() {
    let (mut map, mut freed) = (Map::default(), Vec::new());
    let pages = Pages { segment: 1, first: 2, count: 2 };
    map.put(u64::MAX - 2, pages, &Sums(vec![3, 4]), &mut freed);
    assert_eq!((map.all().len(), map.pages()), (1, 2));
    map.punch(0, u64::MAX, &mut freed);
    assert_eq!((freed, map), (vec![pages], Map::default()));
}

#[test]
fn what_makes_no_sense_of_what_was_stored_is_left_out() {
    let run = |at, first, count, sums: usize| Run {
        at,
        pages: Pages { segment: 1, first, count },
        last_len: PAGE as u16,
        sums: Sums(vec![1; sums]),
    };
    let bad =
        [run(u64::MAX, 0, 2, 2), run(0, u32::MAX, 2, 2), run(0, 0, 2, 1), run(0, 0, 0, 0), run(u64::MAX, 0, 9, 0)];
    assert_eq!(Map::from(bad.to_vec()), Map::default());
}
