//! Keeps vectors in one array in memory, and compares a query with all of them.

use std::collections::HashMap;

use rusqlite::Connection;
use wide::f32x8;

/// The maximum number of dimensions of a vector.
pub(crate) const MAX_DIMENSIONS: usize = 8192;

/// Identifies a passage until its document is written again.
pub(crate) type PassageId = i64;

/// The vectors of one model, each of length 1.
#[derive(Debug, Default)]
pub(crate) struct Matrix {
    model: String,
    dimensions: usize,
    data: Vec<f32>,
    rows: Vec<PassageId>,
    row_of_passage: HashMap<PassageId, usize>,
}

/// Scales the vector to length 1; `None` if it is not finite or has no direction.
pub(super) fn normalize(vector: &[f32]) -> Option<Vec<f32>> {
    if !(1..=MAX_DIMENSIONS).contains(&vector.len()) {
        return None;
    }
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    (length.is_finite() && length > 0.0).then(|| vector.iter().map(|x| x / length).collect())
}

/// Returns the stored form of a vector.
pub(crate) fn vector_to_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Reads a vector from its stored form.
pub(crate) fn vector_from_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let sum = a.iter().zip(b).fold(f32x8::ZERO, |sum, (a, b)| f32x8::from(*a).mul_add(f32x8::from(*b), sum));
    sum.reduce_add() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

impl Matrix {
    /// Loads all vectors of the model that has most of them.
    pub fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let mut matrix = Self::default();
        let mut statement = conn.prepare_cached(
            "SELECT id, model, vector FROM passages WHERE vector IS NOT NULL AND model =
             (SELECT model FROM passages WHERE vector IS NOT NULL GROUP BY model ORDER BY count(*) DESC, model LIMIT 1)",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let model = row.get_ref(1)?.as_str()?;
            let vector = vector_from_bytes(row.get_ref(2)?.as_blob()?);
            matrix.insert(row.get(0)?, model, &vector);
        }
        Ok(matrix)
    }

    /// Adds a vector. A vector of another model or with other dimensions starts a new matrix.
    pub fn insert(&mut self, id: PassageId, model: &str, vector: &[f32]) {
        if self.model != model || self.dimensions != vector.len() {
            *self = Self { model: model.to_owned(), dimensions: vector.len(), ..Self::default() };
        }
        match self.row_of_passage.get(&id) {
            Some(row) => {
                let start = row * self.dimensions;
                if let Some(old) = self.data.get_mut(start..start + self.dimensions) {
                    old.copy_from_slice(vector);
                }
            }
            None => {
                self.row_of_passage.insert(id, self.rows.len());
                self.rows.push(id);
                self.data.extend_from_slice(vector);
            }
        }
    }

    pub fn remove(&mut self, id: PassageId) {
        let Some(row) = self.row_of_passage.remove(&id) else { return };
        let last = self.rows.len() - 1;
        if row != last {
            let (from, to) = (last * self.dimensions, row * self.dimensions);
            self.data.copy_within(from..from + self.dimensions, to);
            if let Some(moved) = self.rows.get(last) {
                self.row_of_passage.insert(*moved, row);
            }
        }
        self.rows.swap_remove(row);
        self.data.truncate(last * self.dimensions);
    }

    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Returns the cosine of each passage with the query; `None` if the query has other dimensions.
    pub fn cosines(&self, query: &[f32]) -> Option<Vec<(PassageId, f32)>> {
        let query = normalize(query).filter(|query| query.len() == self.dimensions && !self.rows.is_empty())?;
        let vectors = self.data.chunks_exact(self.dimensions);
        Some(self.rows.iter().copied().zip(vectors.map(|vector| dot(vector, &query))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_are_exact_in_all_dimensions() {
        for dimensions in [1, 7, 8, 9, 384, 1000] {
            let vector = |seed: i64| -> Vec<f32> {
                (0..dimensions).map(|position: i64| ((position * 31 + seed * 17) % 101) as f32 / 50.0 - 0.99).collect()
            };
            let mut matrix = Matrix::default();
            for id in 0..20 {
                matrix.insert(id, "m", &normalize(&vector(id)).unwrap());
            }
            for (id, cosine) in matrix.cosines(&vector(3)).unwrap() {
                let (a, b) = (vector(3), vector(id));
                let length = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                let dot: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let expected = dot / length(&a) / length(&b);
                assert!((f64::from(cosine) - expected).abs() < 1e-4, "{dimensions} {id}: {cosine} {expected}");
            }
        }
    }

    #[test]
    fn vectors_are_inserted_and_removed() {
        let mut matrix = Matrix::default();
        for id in 0..5 {
            matrix.insert(id, "m", &[id as f32, 1.0]);
        }
        matrix.remove(1);
        matrix.remove(4);
        matrix.remove(9);
        matrix.insert(2, "m", &[0.0, 1.0]);
        let mut left: Vec<PassageId> = matrix.cosines(&[0.0, 2.0]).unwrap().into_iter().map(|(id, _)| id).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 2, 3]);
        assert!(matrix.cosines(&[0.0, 2.0]).unwrap().contains(&(2, 1.0)));
        assert!(matrix.cosines(&[1.0]).is_none() && matrix.cosines(&[f32::NAN, 1.0]).is_none());
        assert!(matrix.cosines(&[0.0, 0.0]).is_none());
        matrix.insert(7, "other", &[1.0, 0.0, 0.0]);
        assert_eq!((matrix.dimensions(), matrix.cosines(&[1.0, 0.0, 0.0]).unwrap().len()), (3, 1));
        matrix.remove(7);
        assert!(matrix.cosines(&[1.0, 0.0, 0.0]).is_none());
    }

    #[test]
    fn zero_vector_is_rejected() {
        for bad in [vec![], vec![0.0; 4], vec![f32::NAN, 1.0], vec![f32::INFINITY, 1.0], vec![1.0; MAX_DIMENSIONS + 1]]
        {
            assert!(normalize(&bad).is_none());
        }
        assert_eq!(normalize(&[3.0, 4.0]).unwrap(), [0.6, 0.8]);
        assert_eq!(vector_from_bytes(&vector_to_bytes(&[0.5, -1.0])), [0.5, -1.0]);
    }
}
