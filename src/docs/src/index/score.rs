//! Relevance, from 0 to 1.
//!
//! **Words.** A term of the query that `n` of `N` passages have weighs `w = ln(1 + (N + 100 - n) / (n + 0.5))`: the more, the
//! rarer it is. (The 100 stand for passages of other collections, so that a small collection does not take each of its words
//! for a common one.) What a term adds to a passage is its BM25 there, as a part of the most that it could be: from 0 to 1.
//! The match `m` of a passage is the mean of these, by weight; terms that occur nowhere count, with 0. The match of a document
//! is 0.7 of that of its best passage and 0.3 of what all its passages have together.
//!
//! **Meaning.** How far the cosine of query and passage stands above what is usual for this query in this collection, in
//! standard deviations: `z = (cosine - mean) / deviation`. So no model needs a scale of its own.
//!
//! **Relevance** is a logistic curve of these, `1 / (1 + exp(-x))`: of words alone `x = 12.5 m - 3.5`, of both
//! `x = 11 m + 0.7 z - 5`. The constants were chosen on the questions of `tests/knowledge/questions.json`, so that 0.5 and
//! 0.7 tell apart what answers them and what does not; `docs/knowledge.md` says how well that works.
//!
//! **Order.** By words alone, by `m`. By both, by reciprocal rank fusion: the sum of `1 / (10 + place)` in the two rankings. A
//! document is at least as relevant as any that ranks below it.

/// Of reciprocal rank fusion. The usual 60 finds less (`docs/knowledge.md`).
const K: f64 = 10.0;

/// Passages from which on the deviation of cosines says something.
const FEW: usize = 30;
/// What the deviation is at least, where there are fewer.
const LEAST_DEVIATION: f64 = 0.05;

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// What a term weighs that `n` of `all` passages have.
pub(super) fn weight(n: usize, all: usize) -> f64 {
    let (n, all) = (n as f64, all as f64);
    (1.0 + (all + 100.0 - n) / (n + 0.5)).ln()
}

/// The relevance of a match of words.
pub(super) fn of_words(matched: f64) -> f64 {
    // Nothing matched is nothing, and all of it is all.
    let at = |matched: f64| logistic(12.5 * matched - 3.5);
    ((at(matched) - at(0.0)) / (at(1.0) - at(0.0))).clamp(0.0, 1.0)
}

/// What is usual among cosines.
pub(super) struct Usual {
    mean: f64,
    deviation: f64,
    few: bool,
}

impl Usual {
    pub fn of(cosines: impl Iterator<Item = f64> + Clone) -> Self {
        let all = cosines.clone().count();
        let count = all.max(1) as f64;
        let mean = cosines.clone().sum::<f64>() / count;
        let variance = cosines.map(|cosine| (cosine - mean).powi(2)).sum::<f64>() / count;
        let few = all < FEW;
        Self { mean, deviation: variance.sqrt().max(if few { LEAST_DEVIATION } else { 1e-6 }), few }
    }

    /// How far a cosine stands above what is usual.
    pub fn above(&self, cosine: f64) -> f64 {
        (cosine - self.mean) / self.deviation
    }

    /// The relevance of a match of words and of what stands that far above what is usual.
    pub fn of_both(&self, matched: f64, above: f64) -> f64 {
        let both = logistic(11.0 * matched + 0.7 * above - 5.0);
        // Among few there is nothing to stand above.
        if self.few { both.max(of_words(matched)) } else { both }
    }
}

/// What the order goes by, of the places in both rankings, from 0; `None` for what is in only one of them.
pub(super) fn fused(places: (Option<usize>, Option<usize>)) -> f64 {
    let of = |place: Option<usize>| place.map_or(0.0, |place| 1.0 / (K + place as f64));
    of(places.0) + of(places.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevance_is_from_0_to_1_and_rises() {
        let words: Vec<f64> = (0..=100).map(|at| of_words(f64::from(at) / 100.0)).collect();
        assert!(words.is_sorted() && words[0] == 0.0 && (words[100] - 1.0).abs() < 1e-9, "{words:?}");
        let usual = Usual::of((0..1000).map(|at| 0.7 + f64::from(at % 100) / 1000.0));
        let both: Vec<f64> = (0..=100).map(|at| usual.of_both(0.2, usual.above(f64::from(at) / 100.0))).collect();
        assert!(both.is_sorted() && both.iter().all(|score| (0.0..=1.0).contains(score)));
        assert!(usual.of_both(0.0, usual.above(0.75)) < 0.05 && usual.of_both(0.5, usual.above(0.85)) > 0.8);
        let few = Usual::of([0.8, 0.81].into_iter());
        assert!(few.of_both(0.5, few.above(0.8)) >= of_words(0.5));
    }

    #[test]
    fn rare_terms_weigh_more_and_a_small_collection_has_no_common_ones() {
        assert!(weight(1, 10_000) > 2.0 * weight(1000, 10_000));
        assert!(weight(1, 1) > 0.7 * weight(0, 1));
        assert!(weight(10_000, 10_000) > 0.0);
    }

    #[test]
    fn what_both_rankings_have_first_is_first() {
        let first = fused((Some(0), Some(0)));
        assert!(first > fused((Some(0), Some(1))) && fused((Some(0), Some(5))) > fused((Some(0), None)));
        assert_eq!(fused((None, None)), 0.0);
        assert!(Usual::of(std::iter::empty()).above(0.5).is_finite());
    }
}
