//! A map from numbers that are given out in order to what is open under them.
//!
//! Such numbers lie close together, so the map is pages of 64 places: finding a place costs a look at a
//! few pages, and nothing is allocated for each entry. However long an old entry stays, only its own page
//! stays with it: memory is at most a page for each entry, and in order a sixty-fourth of that.
//!
//! Always: iteration goes by number, ascending.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Index;

/// Places in a page.
const PLACES: u64 = 64;

/// A page: the entries whose numbers share all but the last six bits.
#[derive(Debug)]
struct Page<T> {
    used: u32,
    places: Box<[Option<(u64, T)>]>,
}

impl<T> Page<T> {
    fn new() -> Page<T> {
        Page { used: 0, places: (0..PLACES).map(|_| None).collect() }
    }
}

/// The map.
#[derive(Debug)]
pub(super) struct IdMap<T> {
    pages: BTreeMap<u64, Page<T>>,
    /// An empty page, kept so that one that fills and empties again and again costs no memory calls.
    spare: Option<Page<T>>,
    count: usize,
}

impl<T> Default for IdMap<T> {
    fn default() -> IdMap<T> {
        IdMap { pages: BTreeMap::new(), spare: None, count: 0 }
    }
}

fn place_of(id: u64) -> (u64, usize) {
    let place = usize::try_from(id % PLACES).expect("below 64");
    (id / PLACES, place)
}

impl<T> IdMap<T> {
    pub(super) fn new() -> IdMap<T> {
        IdMap::default()
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Enters something; returns what was there before.
    pub(super) fn insert(&mut self, id: u64, value: T) -> Option<T> {
        let (number, place) = place_of(id);
        let spare = &mut self.spare;
        let page =
            self.pages.entry(number).or_insert_with(|| spare.take().unwrap_or_else(Page::new));
        let old = page.places[place].replace((id, value));
        if old.is_none() {
            page.used += 1;
            self.count += 1;
        }
        old.map(|(_, value)| value)
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, id: &u64) -> Option<T> {
        let (number, place) = place_of(*id);
        let page = self.pages.get_mut(&number)?;
        let (_, value) = page.places[place].take()?;
        page.used -= 1;
        self.count -= 1;
        if page.used == 0 {
            self.spare = self.pages.remove(&number);
        }
        Some(value)
    }

    pub(super) fn get(&self, id: &u64) -> Option<&T> {
        let (number, place) = place_of(*id);
        self.pages.get(&number)?.places[place].as_ref().map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, id: &u64) -> Option<&mut T> {
        let (number, place) = place_of(*id);
        self.pages.get_mut(&number)?.places[place].as_mut().map(|(_, value)| value)
    }

    pub(super) fn contains_key(&self, id: &u64) -> bool {
        self.get(id).is_some()
    }

    /// The first number at or after `from` that has an entry.
    pub(super) fn next_key(&self, from: u64) -> Option<u64> {
        let (number, place) = place_of(from);
        self.pages.range(number..).find_map(|(&page_number, page)| {
            let first = if page_number == number { place } else { 0 };
            page.places[first..].iter().flatten().map(|&(id, _)| id).next()
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&u64, &T)> {
        let entries = self.pages.values().flat_map(|page| page.places.iter().flatten());
        entries.map(|(id, value)| (id, value))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&u64, &mut T)> {
        let entries = self.pages.values_mut().flat_map(|page| page.places.iter_mut().flatten());
        entries.map(|(id, value)| (&*id, value))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &u64> {
        self.iter().map(|(id, _)| id)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// Takes everything out, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (u64, T)> + use<T> {
        self.count = 0;
        let pages = core::mem::take(&mut self.pages);
        pages.into_values().flat_map(|page| page.places.into_iter().flatten())
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.count = 0;
    }
}

impl<T> Index<&u64> for IdMap<T> {
    type Output = T;
    fn index(&self, id: &u64) -> &T {
        self.get(id).expect("the caller knows that it is open")
    }
}

#[cfg(test)]
mod tests {
    use super::IdMap;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use base::Prng;

    #[test]
    fn it_holds_what_an_ordered_map_holds() {
        let mut random = Prng::new(3);
        let (mut map, mut model) = (IdMap::new(), BTreeMap::new());
        for next in 0..20_000_u64 {
            let id = next + random.below(3);
            assert_eq!(map.insert(id, next), model.insert(id, next));
            let gone = next.saturating_sub(random.below(300));
            assert_eq!(map.remove(&gone), model.remove(&gone));
            assert_eq!((map.len(), map.get(&id)), (model.len(), model.get(&id)));
            let from = next.saturating_sub(200);
            let following = model.range(from..).next().map(|(&id, _)| id);
            assert_eq!(map.next_key(from), following);
        }
        assert!(map.iter().eq(model.iter()));
        let all: Vec<(u64, u64)> = map.drain().collect();
        assert!(all.into_iter().eq(model));
        assert!(map.is_empty());
    }

    #[test]
    fn an_old_entry_keeps_one_page_and_no_more() {
        let mut map = IdMap::new();
        map.insert(0, ());
        for id in 1..100_000 {
            map.insert(id, ());
            map.remove(&id);
        }
        assert!(map.pages.len() <= 2);
    }
}
