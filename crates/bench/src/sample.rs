//! Repeated measurements, and what may be said of them.

use serde::Serialize;

/// One measurement of one workload.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Sample {
    pub(crate) iops: f64,
    pub(crate) mb_per_second: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// Processor time of all server processes, in ms per 1000 requests.
    pub(crate) cpu_ms: f64,
    /// Of fio.
    pub(crate) fio_ms: f64,
    /// Requests of the second half of the time in parts of those of the first; `None`: nobody counted them apart.
    pub(crate) second_half: Option<f64>,
}

/// Repeats of one thing.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Repeats {
    pub(crate) samples: Vec<Sample>,
}

impl Repeats {
    /// The median of something.
    pub(crate) fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(of).collect())
    }

    /// The median of what the second halves were in parts of the first; `None` where that was counted of none.
    pub(crate) fn second_half(&self) -> Option<f64> {
        let known: Vec<f64> = self.samples.iter().filter_map(|sample| sample.second_half).collect();
        (!known.is_empty()).then(|| median(known))
    }

    /// The smallest and the largest of something.
    pub(crate) fn range(&self, of: impl Fn(&Sample) -> f64) -> (f64, f64) {
        spread(&self.samples.iter().map(of).collect::<Vec<f64>>())
    }

    /// Both.
    pub(crate) fn summary(&self, of: impl Fn(&Sample) -> f64 + Copy) -> Summary {
        Summary { median: self.median(of), range: self.range(of) }
    }
}

/// A figure that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    /// The smallest and the largest.
    pub(crate) range: (f64, f64),
}

/// The smallest and the largest of some numbers.
pub(crate) fn spread(numbers: &[f64]) -> (f64, f64) {
    numbers
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &one| (low.min(one), high.max(one)))
}

/// The middle of some numbers; 0 of none.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.as_slice() {
        [] => 0.0,
        all if all.len() % 2 == 1 => all[middle],
        all => f64::midpoint(all[middle - 1], all[middle]),
    }
}

/// What one thing reached in parts of another, both measured in each turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Paired {
    /// The median of the turns' ratios.
    pub(crate) median: f64,
    /// Between these the ratio lies in 95 of 100 such runs, if there were turns enough to tell; else all turns' ratios do.
    pub(crate) range: (f64, f64),
}

/// One thing's figures in parts of another's, turn by turn; `None` without turns.
pub(crate) fn paired(
    one: &Repeats,
    other: &Repeats,
    of: impl Fn(&Sample) -> f64,
) -> Option<Paired> {
    let pairs = one.samples.iter().zip(&other.samples);
    let mut ratios: Vec<f64> = pairs.map(|(one, other)| of(one) / of(other)).collect();
    ratios.sort_by(f64::total_cmp);
    let cut = left_out(ratios.len());
    let (low, high) = (*ratios.get(cut)?, *ratios.get(ratios.len() - 1 - cut)?);
    Some(Paired { median: median(ratios), range: (low, high) })
}

/// How many of so many sorted figures may be left out at either end so that the rest still spans the median of what they were drawn
/// from, in 95 of 100 cases (the sign test): of so many fair coins fewer show heads, or one more, in 2.5 of 100 at most.
fn left_out(count: usize) -> usize {
    let all = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let (mut exactly, mut at_most, mut heads) = (0.5_f64.powf(all), 0.0, 0.0);
    let mut within = 0_usize;
    while at_most + exactly <= 0.025 {
        within += 1;
        at_most += exactly;
        exactly *= (all - heads) / (heads + 1.0);
        heads += 1.0;
    }
    within.saturating_sub(1)
}

/// How one revision stands against another, in per cent of the other; `None`: the ranges overlap, so
/// that the difference may be chance.
pub(crate) fn change(ours: Summary, theirs: Summary) -> Option<f64> {
    let ((low, high), (their_low, their_high)) = (ours.range, theirs.range);
    let apart = low > their_high || high < their_low;
    apart.then(|| (ours.median / theirs.median - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::{Paired, Repeats, Sample, change, left_out, median, paired};

    fn of(all: &[f64]) -> Repeats {
        let sample = |&iops| Sample { iops, ..Sample::default() };
        Repeats { samples: all.iter().map(sample).collect() }
    }

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    #[test]
    fn a_ratio_is_taken_turn_by_turn() {
        // The machine was twice as fast from the third turn on.
        let (one, other) = (of(&[9.0, 10.0, 22.0]), of(&[10.0, 10.0, 20.0]));
        let iops = |sample: &Sample| sample.iops;
        let found = paired(&one, &other, iops);
        assert_eq!(found, Some(Paired { median: 1.0, range: (0.9, 1.1) }));
        assert_eq!(paired(&of(&[]), &other, iops), None);
    }

    #[test]
    fn as_many_are_left_out_as_tables_of_the_sign_test_say() {
        let known = [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (15, 3), (25, 7), (31, 9)];
        for (count, expected) in known {
            assert_eq!(left_out(count), expected, "of {count}");
        }
    }

    #[test]
    fn a_difference_smaller_than_the_spread_is_no_change() {
        let of = |all: &[f64]| of(all).summary(|sample| sample.iops);
        assert_eq!(change(of(&[10.0, 12.0, 11.0]), of(&[12.0, 13.0, 14.0])), None);
        assert_eq!(change(of(&[20.0, 22.0, 21.0]), of(&[10.0, 10.5, 11.0])), Some(100.0));
    }
}
