//! The four ways to get an object, and the classes of gets that are measured separately.

/// Way to fetch an object (apnet19 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMethod {
    /// One READ for each access, one after the other. The server's processor takes no part.
    OneSided,
    /// One request, which the server answers after it has made all accesses itself: a compound read.
    TwoSided,
}

/// Way to learn of a completion (apnet19 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionMode {
    /// Its thread polls the completion queue all the time.
    Polling,
    /// Its thread sleeps on the completion queue's descriptor.
    Events,
}

/// One of the four combinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// Way to fetch the object.
    pub method: AccessMethod,
    /// Way to learn of its completion.
    pub mode: CompletionMode,
}

impl Choice {
    /// Number of choices.
    pub const COUNT: usize = 4;

    /// All choices. Those that poll come first, so that a reader that knows nothing changes its completion mode only
    /// once.
    pub const ALL: [Self; Self::COUNT] = [
        Self { method: AccessMethod::OneSided, mode: CompletionMode::Polling },
        Self { method: AccessMethod::TwoSided, mode: CompletionMode::Polling },
        Self { method: AccessMethod::OneSided, mode: CompletionMode::Events },
        Self { method: AccessMethod::TwoSided, mode: CompletionMode::Events },
    ];

    /// Index in [`Self::ALL`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.mode == CompletionMode::Events) * 2 + usize::from(self.method == AccessMethod::TwoSided)
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let method = match self.method {
            AccessMethod::OneSided => "one-sided",
            AccessMethod::TwoSided => "two-sided",
        };
        let mode = match self.mode {
            CompletionMode::Polling => "polling",
            CompletionMode::Events => "events",
        };
        write!(f, "{method}, {mode}")
    }
}

/// The most dependent accesses of a get, however reader and server are configured.
pub const ACCESSES_MAX: u32 = 16;

/// A class of gets that are measured together: those of similar size with the same number of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GetClass {
    size_log2: u8,
    accesses: u8,
}

impl GetClass {
    const SIZES: usize = 32;
    /// Number of classes.
    pub const COUNT: usize = Self::SIZES * ACCESSES_MAX as usize;

    /// The class of objects of `len` bytes, rounded up to a power of two, after `accesses` accesses. Lengths beyond
    /// 2^31 bytes belong to the last class of sizes, and more than [`ACCESSES_MAX`] accesses to the last class of
    /// accesses.
    pub fn of(len: u32, accesses: u32) -> Self {
        let size_log2 = len.max(1).checked_next_power_of_two().map_or(31, u32::trailing_zeros);
        Self { size_log2: size_log2 as u8, accesses: accesses.clamp(1, ACCESSES_MAX) as u8 }
    }

    /// The longest object of the class, in bytes.
    pub fn len_max(self) -> u32 {
        1 << self.size_log2
    }

    /// Number of accesses of the class's gets.
    pub fn accesses(self) -> u32 {
        self.accesses.into()
    }

    /// Index of the class, below [`Self::COUNT`].
    pub(super) fn index(self) -> usize {
        usize::from(self.size_log2) * ACCESSES_MAX as usize + usize::from(self.accesses) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_know_their_places() {
        for (index, choice) in Choice::ALL.into_iter().enumerate() {
            assert_eq!(choice.index(), index, "{choice}");
        }
    }

    #[test]
    fn sizes_are_classed_by_powers_of_two() {
        for (len, len_max) in [(0, 1), (1, 1), (2, 2), (3, 4), (32, 32), (33, 64), (4096, 4096), (u32::MAX, 1 << 31)] {
            assert_eq!(GetClass::of(len, 1).len_max(), len_max, "{len}");
        }
        assert_eq!([0, 1, 4, 99].map(|accesses| GetClass::of(32, accesses).accesses()), [1, 1, 4, ACCESSES_MAX]);
        let last = GetClass::of(u32::MAX, ACCESSES_MAX);
        assert_eq!((GetClass::of(0, 1).index(), last.index()), (0, GetClass::COUNT - 1));
    }
}
