//! A table whose places are named by small numbers, and whose names are not mistaken after reuse.
//!
//! Not here: limits; whoever fills a table knows its own.

/// Names a place in a [`Slab`]. A name outlives what it named: then nothing is found under it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Key {
    index: u32,
    serial: u32,
}

impl Key {
    /// As one number, for those who can carry no more.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.index)
    }

    /// The key behind a number.
    pub(crate) fn from_number(number: u64) -> Key {
        let low = u32::try_from(number & u64::from(u32::MAX)).expect("masked");
        let high = u32::try_from(number >> 32).expect("shifted");
        Key { index: low, serial: high }
    }

    fn place(self) -> usize {
        self.index as usize
    }
}

struct Place<T> {
    serial: u32,
    value: Option<T>,
}

/// The table.
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Puts a value in, and names its place.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { serial: 0, value: None });
            u32::try_from(self.places.len() - 1).expect("no table has four billion places")
        });
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        Key { index, serial: place.serial }
    }

    /// Takes a value out.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.place()).filter(|place| place.serial == key.serial)?;
        let value = place.value.take()?;
        place.serial = place.serial.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// The value under a key.
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.place())?;
        place.value.as_ref().filter(|_| place.serial == key.serial)
    }

    /// The value under a key, to change it.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.place())?;
        let serial = place.serial;
        place.value.as_mut().filter(|_| serial == key.serial)
    }

    /// Every value with its key, by place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> + Clone {
        (0_u32..).zip(&self.places).filter_map(|(index, place)| {
            Some((Key { index, serial: place.serial }, place.value.as_ref()?))
        })
    }

    /// Every key in use, by place.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.iter().map(|(key, _)| key).collect()
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, Slab};

    #[test]
    fn a_name_finds_nothing_after_its_place_was_given_to_another() {
        let mut slab = Slab::default();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&'b')));
        assert_eq!(slab.remove(first), None);
        assert_eq!(Key::from_number(second.number()), second);
        assert_eq!((slab.len(), slab.keys()), (1, vec![second]));
    }
}
