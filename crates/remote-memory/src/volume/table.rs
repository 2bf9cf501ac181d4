//! A table of values by number, whose places are reused.

pub(super) struct Table<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn insert(&mut self, thing: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self.slots[place as usize] = Some(thing);
            return place;
        }
        self.slots.push(Some(thing));
        self.slots.len() as u32 - 1
    }

    pub fn get(&self, place: u32) -> Option<&T> {
        self.slots.get(place as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.slots.get_mut(place as usize)?.as_mut()
    }

    pub fn remove(&mut self, place: u32) -> Option<T> {
        let thing = self.slots.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(thing)
    }

    /// Numbers of all values.
    pub fn keys(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().enumerate().filter(|(_, thing)| thing.is_some()).map(|(place, _)| place as u32)
    }
}
