/* library_types.h - names of data types, as NVIDIA's libraries share them.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   none. */
#ifndef TARN_TESTS_CUDA_LIBRARY_TYPES_H
#define TARN_TESTS_CUDA_LIBRARY_TYPES_H

typedef enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 } cudaDataType;
typedef enum cudaDataType_t cudaDataType_t;

#endif
