//! Free space of an arena: blocks of a few sizes, which are split and merged again.

use super::LINE;

const _: () = assert!(128 % LINE == 0 && 192 % LINE == 0);

/// Size of the blocks of a class, in bytes: 128, 192, 256, 384, 512, ...
#[inline(always)]
pub(super) fn class_size(class: u32) -> usize {
    let base = 128usize << (class / 2);
    if class.is_multiple_of(2) { base } else { base + base / 2 }
}

/// The smallest class whose blocks have at least `size` bytes.
pub(super) fn class_for(size: usize) -> u32 {
    let mut class = 0;
    // Some fifty steps at most, and only when a buffer is made.
    while class_size(class) < size {
        class += 1;
    }
    class
}

/// Free blocks, and bytes that no block has used yet.
#[derive(Default)]
pub(super) struct FreeLists {
    /// Offset of the first byte that no block has used yet.
    pub(super) fresh: usize,
    /// Offsets of free blocks, by size class.
    by_class: Vec<Vec<usize>>,
    /// Blocks given back since free blocks were last merged.
    freed: usize,
}

impl FreeLists {
    /// Takes a free block of at least this class and returns it with its class; `None` when `capacity` bytes have no
    /// room for it.
    pub(super) fn take(&mut self, class: u32, capacity: usize) -> Option<(usize, u32)> {
        if let Some(offset) = self.pop(class) {
            return Some((offset, class));
        }
        let size = class_size(class);
        let offset = self.fresh;
        if size <= capacity - offset {
            self.fresh += size;
            return Some((offset, class));
        }
        // All bytes have been used by some block. Part of a larger free block will do, or several small ones merged.
        loop {
            if let Some(offset) = self.pop(class).or_else(|| self.split(class)) {
                return Some((offset, class));
            }
            // A block only one class larger may be too small to split, so it is handed out whole.
            if let Some(offset) = self.pop(class + 1) {
                return Some((offset, class + 1));
            }
            if !self.merge() {
                return None;
            }
        }
    }

    /// Takes a block back.
    pub(super) fn give_back(&mut self, offset: usize, class: u32) {
        self.freed += 1;
        self.put(offset, class);
    }

    fn pop(&mut self, class: u32) -> Option<usize> {
        self.by_class.get_mut(class as usize)?.pop()
    }

    fn put(&mut self, offset: usize, class: u32) {
        let class = class as usize;
        if self.by_class.len() <= class {
            self.by_class.resize_with(class + 1, Vec::new);
        }
        self.by_class[class].push(offset);
    }

    /// Makes free blocks of the `len` bytes from `offset` on, each as large as possible. `len` is a sum of block sizes.
    fn put_run(&mut self, mut offset: usize, mut len: usize) {
        while len > 0 {
            // The rest must be nothing, or enough for a block.
            let mut class = class_for(len);
            while class_size(class) > len || (1..class_size(0)).contains(&(len - class_size(class))) {
                class -= 1;
            }
            self.put(offset, class);
            (offset, len) = (offset + class_size(class), len - class_size(class));
        }
    }

    /// Splits a block of the class off a larger free one; the rest stays free.
    fn split(&mut self, class: u32) -> Option<usize> {
        let larger = (class + 1..self.by_class.len() as u32).find(|&larger| {
            let left = class_size(larger) - class_size(class);
            left >= class_size(0) && !self.by_class[larger as usize].is_empty()
        })?;
        let offset = self.by_class[larger as usize].pop()?;
        self.put_run(offset + class_size(class), class_size(larger) - class_size(class));
        Some(offset)
    }

    /// Merges adjacent free blocks. This looks at every free block, so it runs only once an eighth as many have been
    /// given back since the last merge.
    #[cold]
    fn merge(&mut self) -> bool {
        let blocks: usize = self.by_class.iter().map(Vec::len).sum();
        if self.freed == 0 || self.freed < blocks / 8 {
            return false;
        }
        self.freed = 0;
        let mut free: Vec<(usize, usize)> = Vec::with_capacity(blocks);
        for (class, offsets) in self.by_class.iter_mut().enumerate() {
            free.extend(offsets.drain(..).map(|offset| (offset, class_size(class as u32))));
        }
        free.sort_unstable();
        let mut runs = free.into_iter();
        let Some(mut run) = runs.next() else { return false };
        for (offset, len) in runs {
            if run.0 + run.1 == offset {
                run.1 += len;
            } else {
                self.put_run(run.0, run.1);
                run = (offset, len);
            }
        }
        self.put_run(run.0, run.1);
        true
    }
}
