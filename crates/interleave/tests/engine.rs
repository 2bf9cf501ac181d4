//! The promises of a batch: results in order, whatever the lookups do, and nothing left behind.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use proptest::prelude::*;
use sinew_interleave::{Batch, WidthError, alone, fetch, switch};

/// Switches `times` times.
async fn switching(times: usize) -> usize {
    for _ in 0..times {
        switch().await;
    }
    times
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    #[test]
    fn results_come_in_the_order_of_the_inputs(times in prop::collection::vec(0usize..9, 0..60), width in 1usize..=16) {
        let mut results = vec![usize::MAX; times.len()];
        let count = Batch::<16>::of_width(width).unwrap().run(times.iter().copied(), &mut results, switching);
        prop_assert_eq!(count, times.len());
        prop_assert_eq!(results, times);
    }

    #[test]
    fn as_many_lookups_run_at_once_as_the_width_says_and_no_more(times in prop::collection::vec(1usize..9, 0..60), width in 1usize..=8) {
        let (live, most) = (Cell::new(0), Cell::new(0));
        let mut results = vec![0; times.len()];
        Batch::<8>::of_width(width).unwrap().run(times.iter().copied(), &mut results, async |times| {
            live.set(live.get() + 1);
            most.set(most.get().max(live.get()));
            let times = switching(times).await;
            live.set(live.get() - 1);
            times
        });
        prop_assert_eq!(most.get(), width.min(times.len()));
        prop_assert_eq!(live.get(), 0);
    }

    #[test]
    fn lookups_that_panic_leave_the_others_defined(
        times in prop::collection::vec((0usize..5, any::<bool>()), 1..40),
        width in 1usize..=8,
    ) {
        let mut results = vec![usize::MAX; times.len()];
        let batch = Batch::<8>::of_width(width).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            batch.run(times.iter().copied().enumerate(), &mut results, async |(at, (times, panics))| {
                let times = switching(times).await;
                // This way, nothing is printed on standard error.
                if panics {
                    std::panic::resume_unwind(Box::new(at));
                }
                times
            })
        }));
        let expected: Vec<usize> =
            times.iter().map(|(times, panics)| if *panics { usize::MAX } else { *times }).collect();
        prop_assert_eq!(results, expected);
        match caught {
            Ok(count) => prop_assert!(count == times.len() && times.iter().all(|(_, panics)| !panics)),
            Err(payload) => {
                let at = *payload.downcast::<usize>().expect("a number is what was thrown");
                prop_assert!(times[at].1);
            }
        }
    }
}

#[test]
fn widths_are_1_to_the_most() {
    assert_eq!(Batch::<4>::of_width(0), Err(WidthError { width: 0, max: 4 }));
    assert_eq!(Batch::<4>::of_width(5), Err(WidthError { width: 5, max: 4 }));
    assert_eq!(Batch::<4>::of_width(1).unwrap().width(), 1);
    assert_eq!(Batch::<4>::of_width(4), Ok(Batch::new()));
    assert_eq!(WidthError { width: 5, max: 4 }.to_string(), "a batch cannot run 5 lookups at once: choose 1 to 4");
}

#[test]
fn inputs_beyond_the_results_are_not_taken() {
    let (mut inputs, mut results) = (0..10, [0; 4]);
    assert_eq!(Batch::<3>::new().run(&mut inputs, &mut results, switching), 4);
    assert_eq!((results, inputs.next()), ([0, 1, 2, 3], Some(4)));
    assert_eq!(Batch::<3>::new().run(0..0, &mut results, switching), 0);
    assert_eq!(Batch::<3>::new().run(0..9, &mut [], switching), 0);
}

#[test]
fn each_result_is_taken_when_its_lookup_ends() {
    let mut taken = Vec::new();
    let count = Batch::<2>::new().for_each([5, 1, 1, 0], switching, |at, times| taken.push((at, times)));
    assert_eq!((count, taken), (4, vec![(1, 1), (2, 1), (3, 0), (0, 5)]));
}

#[test]
fn a_panic_of_the_inputs_ends_them_and_not_the_lookups_that_have_begun() {
    let inputs = (0..10).inspect(|at| {
        if *at == 5 {
            std::panic::resume_unwind(Box::new("no more"));
        }
    });
    let taken = RefCell::new(Vec::new());
    let run =
        || Batch::<2>::new().for_each(inputs, async |at| switching(at).await, |_, at| taken.borrow_mut().push(at));
    assert_eq!(*catch_unwind(AssertUnwindSafe(run)).unwrap_err().downcast::<&str>().unwrap(), "no more");
    taken.borrow_mut().sort_unstable();
    assert_eq!(*taken.borrow(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_panic_where_results_are_taken_loses_that_result_alone() {
    let mut taken = Vec::new();
    let run = || {
        Batch::<3>::new().for_each(0..6, switching, |_, at| {
            if at == 2 {
                std::panic::resume_unwind(Box::new(()));
            }
            taken.push(at);
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 3, 4, 5]);
}

#[test]
fn what_lookups_hold_is_dropped_once() {
    let held = Rc::new(());
    let mut results = vec![None; 5];
    let run = |results: &mut [Option<Rc<()>>]| {
        Batch::<2>::new().run(0..5, results, |at| {
            let mine = Rc::clone(&held);
            async move {
                switching(at).await;
                if at == 3 {
                    std::panic::resume_unwind(Box::new(()));
                }
                Some(mine)
            }
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(|| run(&mut results))).is_err());
    assert_eq!(Rc::strong_count(&held), 5);
    drop(results);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_lookup_may_hold_references_to_its_own_variables_over_a_switch() {
    let words = [10, 20, 30];
    let mut results = [0; 3];
    Batch::<2>::new().run(0..3, &mut results, async |at: usize| {
        let copy = words;
        let one = &copy[at];
        fetch(one).await;
        switching(at).await;
        *one
    });
    assert_eq!(results, words);
}

#[test]
fn a_lookup_may_run_a_batch_of_its_own() {
    let mut results = [0; 4];
    Batch::<2>::new().run(0..4, &mut results, async |at| {
        let mut inner = [0; 3];
        switch().await;
        Batch::<3>::new().run([at, 1, 2], &mut inner, switching);
        inner.iter().sum::<usize>()
    });
    assert_eq!(results, [3, 4, 5, 6]);
}

#[test]
fn one_alone_runs_to_its_end() {
    assert_eq!(alone(switching(7)), 7);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "run by Batch::run or alone")]
fn another_executor_is_told_that_it_is_none_for_lookups() {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake};
    struct Other;
    impl Wake for Other {
        fn wake(self: Arc<Self>) {}
    }
    let waker = Arc::new(Other).into();
    let _ = pin!(switching(1)).poll(&mut Context::from_waker(&waker));
}
