//! Detection of sequential readers, and the choice of pages to fetch ahead of them.
//!
//! A reader that goes from page to page by a constant step, forward or backward, is a stream. Several streams are
//! followed at once. The step is learnt from two missing pages. From the third on (from the second, if they are
//! neighbours), pages are fetched ahead: two at first, then twice as many each time, up to a maximum. One of the pages
//! is marked; when the reader reaches it, the next window is requested, so that the reader need not wait for any page.

/// Streams followed at once.
const STREAM_COUNT: usize = 8;
/// Largest step recognised, in pages.
const STEP_MAX: u64 = 64;
/// Pages in a stream's first window.
const WINDOW_FIRST: u32 = 2;
const NO_PAGE: u64 = u64::MAX;

/// Pages to fetch ahead: `count` of them from `first` on, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AheadWindow {
    /// The first page.
    pub first: u64,
    /// Distance from page to page; negative when backward.
    pub step: i64,
    /// Number of pages.
    pub count: u32,
    /// The page to mark, and the stream to mark it with.
    pub mark: (u64, u8),
}

impl AheadWindow {
    /// The pages, up to the first that is not below `pages`.
    pub fn pages(self, pages: u64) -> impl Iterator<Item = u64> {
        let page = move |at| self.first.checked_add_signed(self.step.checked_mul(i64::from(at))?);
        (0..self.count).map_while(page).take_while(move |page| *page < pages)
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The last missing page, or the last page fetched ahead.
    last: u64,
    /// 0 while unknown.
    step: i64,
    window: u32,
    mark: u64,
    /// Value of the clock when the stream was last used.
    used: u64,
}

/// All streams.
#[derive(Debug)]
pub struct Streams {
    streams: [Stream; STREAM_COUNT],
    window_max: u32,
    clock: u64,
}

impl Streams {
    /// Streams with windows of at most `window_max` pages. Below two, nothing is fetched ahead.
    pub fn new(window_max: usize) -> Self {
        let unused_stream = Stream { last: NO_PAGE, step: 0, window: 0, mark: NO_PAGE, used: 0 };
        Self {
            streams: [unused_stream; STREAM_COUNT],
            window_max: u32::try_from(window_max).unwrap_or(u32::MAX),
            clock: 0,
        }
    }

    /// Records a missing page. Returns the pages to fetch after it.
    pub fn on_miss(&mut self, page: u64) -> Option<AheadWindow> {
        if self.window_max < WINDOW_FIRST {
            return None;
        }
        self.clock += 1;
        let expects = |stream: &Stream| stream.step != 0 && stream.last.checked_add_signed(stream.step) == Some(page);
        if let Some(at) = self.streams.iter().position(expects) {
            return Some(self.advance(at, page));
        }
        let near = |stream: &Stream| stream.last != NO_PAGE && (1..=STEP_MAX).contains(&stream.last.abs_diff(page));
        let nearest = (0..STREAM_COUNT)
            .filter(|at| near(&self.streams[*at]))
            .min_by_key(|at| self.streams[*at].last.abs_diff(page));
        if let Some(at) = nearest {
            let stream = &mut self.streams[at];
            let step = page.wrapping_sub(stream.last).cast_signed();
            *stream = Stream { last: page, step, window: 0, mark: NO_PAGE, used: self.clock };
            return (step.abs() == 1).then(|| self.advance(at, page));
        }
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used)?;
        *oldest = Stream { last: page, step: 0, window: 0, mark: NO_PAGE, used: self.clock };
        None
    }

    /// Records that the reader reached a page with a stream's mark. Returns the pages to fetch next.
    pub fn on_mark(&mut self, page: u64, stream: u8) -> Option<AheadWindow> {
        let at = usize::from(stream);
        let found = self.streams.get(at)?;
        if found.mark != page {
            return None;
        }
        self.clock += 1;
        Some(self.advance(at, found.last))
    }

    /// Returns the next window of a stream, which begins after page `last`.
    fn advance(&mut self, at: usize, last: u64) -> AheadWindow {
        let stream = &mut self.streams[at];
        stream.used = self.clock;
        stream.window = if stream.window == 0 { WINDOW_FIRST } else { (stream.window * 2).min(self.window_max) };
        let page_after = |steps: u32| last.saturating_add_signed(stream.step.saturating_mul(i64::from(steps)));
        let first = page_after(1);
        // The mark is at the window's start, which leaves the time of a whole window to fetch the next.
        let (mark, end) = (page_after(1), page_after(stream.window));
        (stream.mark, stream.last) = (mark, end);
        AheadWindow { first, step: stream.step, count: stream.window, mark: (mark, at as u8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(ahead: Option<AheadWindow>) -> Vec<u64> {
        ahead.into_iter().flat_map(|ahead| ahead.pages(1000)).collect()
    }

    #[test]
    fn neighbours_are_followed_from_the_second_on_and_windows_double() {
        let mut streams = Streams::new(8);
        assert_eq!(streams.on_miss(10), None);
        let mut ahead = streams.on_miss(11).unwrap();
        let mut next = 12;
        for window in [2, 4, 8, 8] {
            assert_eq!(ahead.count, window);
            assert_eq!(pages(Some(ahead)), (next..next + u64::from(window)).collect::<Vec<_>>());
            next += u64::from(window);
            assert_eq!(streams.on_mark(ahead.mark.0 + 1, ahead.mark.1), None);
            ahead = streams.on_mark(ahead.mark.0, ahead.mark.1).unwrap();
        }
    }

    #[test]
    fn steps_are_learnt_forward_and_backward_and_end_at_the_store() {
        let mut streams = Streams::new(8);
        assert_eq!([streams.on_miss(100), streams.on_miss(103)], [None, None]);
        assert_eq!(pages(streams.on_miss(106)), [109, 112]);
        assert_eq!(pages(streams.on_miss(115)), [118, 121, 124, 127]);
        let mut streams = Streams::new(8);
        assert_eq!(streams.on_miss(5), None);
        assert_eq!(pages(streams.on_miss(4)), [3, 2]);
        assert_eq!(pages(streams.on_miss(1)), [0]);
        assert_eq!(streams.on_miss(998), None);
        assert_eq!(pages(streams.on_miss(999)), []);
    }

    #[test]
    fn random_pages_are_no_stream_and_several_streams_are_followed() {
        let mut streams = Streams::new(8);
        for page in [1, 500, 900, 100, 700, 300, 200, 800, 400] {
            assert_eq!(streams.on_miss(page), None);
        }
        for page in 0..4u64 {
            for start in (0..8).map(|stream| 100 * stream) {
                let ahead = streams.on_miss(start + 200 + page);
                assert_eq!(ahead.is_some(), page == 1 || page >= 4, "{start} {page}");
            }
            if page == 1 {
                break;
            }
        }
        assert_eq!(Streams::new(1).on_miss(1).or(Streams::new(1).on_miss(2)), None);
    }
}
