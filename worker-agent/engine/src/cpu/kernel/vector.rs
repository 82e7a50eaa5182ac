//! Sixteen lanes of f32 on different machines.
//!
//! Everything here is inlined into [`super::product`], whose functions say which instructions the
//! machine must have, and means nothing outside it.

use half::bf16;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Sixteen numbers side by side.
///
/// Every method's contract: the machine has the type's instructions, and sixteen elements are
/// readable or writable behind a pointer, at any alignment.
pub(in super::super) trait Vector: Copy {
    /// Sixteen zeros.
    unsafe fn zero() -> Self;
    /// Reads sixteen numbers.
    unsafe fn load(from: *const f32) -> Self;
    /// Reads sixteen numbers in half the bytes.
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// Writes sixteen numbers.
    unsafe fn store(self, to: *mut f32);
    /// `self + value * weights`, lane by lane.
    unsafe fn add_product(self, value: f32, weights: Self) -> Self;
}

/// A stored weight's format.
pub(in super::super) trait Element: Copy + Send + Sync {
    /// Reads sixteen weights; the contract is that of [`Vector::load`].
    unsafe fn load<V: Vector>(from: *const Self) -> V;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: passed on to the caller.
        unsafe { V::load(from) }
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: passed on to the caller.
        unsafe { V::load_bf16(from) }
    }
}

/// One register.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

#[cfg(target_arch = "x86_64")]
impl Vector for Avx512 {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: passed on to the caller.
        Self(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: passed on to the caller.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: passed on to the caller.
        unsafe {
            let short = _mm256_loadu_si256(from.cast());
            let long = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(short));
            Self(_mm512_castsi512_ps(long))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: passed on to the caller.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn add_product(self, value: f32, weights: Self) -> Self {
        // SAFETY: passed on to the caller.
        Self(unsafe { _mm512_fmadd_ps(_mm512_set1_ps(value), weights.0, self.0) })
    }
}

/// Two registers.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256, __m256);

#[cfg(target_arch = "x86_64")]
impl Vector for Avx2 {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: passed on to the caller.
        unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: passed on to the caller.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: passed on to the caller.
        unsafe {
            let half = |from: *const bf16| {
                let long = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(long))
            };
            Self(half(from), half(from.add(8)))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: passed on to the caller.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, value: f32, weights: Self) -> Self {
        // SAFETY: passed on to the caller.
        unsafe {
            let value = _mm256_set1_ps(value);
            let low = _mm256_fmadd_ps(value, weights.0, self.0);
            Self(low, _mm256_fmadd_ps(value, weights.1, self.1))
        }
    }
}

/// An array that the compiler vectorises as it can.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; 16]);

impl Vector for Portable {
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 16])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: passed on to the caller; an array needs no more alignment than its elements,
        // and `read_unaligned` needs none.
        Self(unsafe { from.cast::<[f32; 16]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: as in `load`.
        let short = unsafe { from.cast::<[bf16; 16]>().read_unaligned() };
        Self(short.map(|weight| f32::from_bits(u32::from(weight.to_bits()) << 16)))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as in `load`.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn add_product(mut self, value: f32, weights: Self) -> Self {
        for (sum, weight) in self.0.iter_mut().zip(weights.0) {
            *sum += value * weight;
        }
        self
    }
}
