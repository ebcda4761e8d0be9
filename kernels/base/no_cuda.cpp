#include "kernels/base/comm_cuda.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/base/device.h"
#include "kernels/base/device_cuda.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/kernel_library.h"
#include "kernels/base/pinned_buffer.h"
#include "kernels/base/run_time_compiler.h"
#include "kernels/base/upload.h"

// Stands in for the CUDA side of kernels/base in a CPU-only build. What takes a CudaContext is
// never called, since there is none.

namespace sparsellm {

int cuda_device_count() { return 0; }

CudaFacts cuda_facts() { return {}; }

DeviceMemory device_memory_cuda(int) { fail("{}", kCpuOnlyBuild); }

int64_t peak_memory_cuda(int) { return 0; }

void* allocate_bytes_cuda(int, int64_t) { fail("{}", kCpuOnlyBuild); }

void free_bytes_cuda(int, void*) noexcept {}

void copy_bytes_cuda(int, void*, const void*, int64_t) { fail("{}", kCpuOnlyBuild); }

GpuInfo query_gpu(int) { fail("{}", kCpuOnlyBuild); }

struct CudaContext::State {};

CudaContext::CudaContext(Device) { fail("{}", kCpuOnlyBuild); }
CudaContext::~CudaContext() = default;
void CudaContext::make_current() const {}
void CudaContext::synchronize() const {}
void CudaContext::wait() const noexcept {}
CudaQueue CudaContext::side_queue(void*) const { return {}; }
void CudaContext::copy(void*, const void*, int64_t, const CudaQueue*) const {}
void CudaContext::copy_async(void*, const void*, int64_t, const CudaQueue*) const {}
void CudaContext::copy_rows_async(void*, int64_t, const void*, int64_t, int64_t, int64_t) const {}

struct StreamFence::State {};

StreamFence::StreamFence(const CudaContext&) {}
StreamFence::~StreamFence() = default;
void StreamFence::set(const CudaQueue*) {}
void StreamFence::wait(const CudaQueue*) const {}

struct CudaEvent::State {};

CudaEvent::CudaEvent(const CudaContext&, Timing, const CudaQueue*) {}
CudaEvent::~CudaEvent() = default;
CudaEvent::CudaEvent(CudaEvent&&) noexcept = default;
CudaEvent& CudaEvent::operator=(CudaEvent&&) noexcept = default;
void CudaEvent::record() {}
void CudaEvent::synchronize() const {}
double CudaEvent::seconds_since(const CudaEvent&) const { return 0.0; }

struct CudaGraph::State {};

CudaGraph::CudaGraph(const CudaContext&, const std::function<void()>&) {}
CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&&) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&&) noexcept = default;
void CudaGraph::launch() const {}

PinnedBuffer::PinnedBuffer(int64_t, std::string_view) { fail("{}", kCpuOnlyBuild); }
PinnedBuffer::~PinnedBuffer() = default;

struct KernelLibrary::State {};

KernelLibrary::KernelLibrary(std::span<const std::byte>, const CudaContext&) {
  fail("{}", kCpuOnlyBuild);
}
KernelLibrary::~KernelLibrary() = default;
KernelLibrary::KernelLibrary(KernelLibrary&&) noexcept = default;
KernelLibrary& KernelLibrary::operator=(KernelLibrary&&) noexcept = default;
CUkern_st* KernelLibrary::kernel(const std::string&, const KernelNeeds&) const { return nullptr; }

struct RunTimeCompiler::State {};

RunTimeCompiler::RunTimeCompiler() = default;
RunTimeCompiler::~RunTimeCompiler() = default;
std::string RunTimeCompiler::why_not() { return std::string(kCpuOnlyBuild); }
std::string RunTimeCompiler::version() { fail("{}", kCpuOnlyBuild); }
std::vector<std::byte> RunTimeCompiler::compile(const KernelSource&) { fail("{}", kCpuOnlyBuild); }

std::unique_ptr<CudaCommunicator> make_cuda_communicator(Communicator&, const CudaContext&,
                                                         const CudaCommOptions&) {
  fail("{}", kCpuOnlyBuild);
}

struct Uploader::State {};

Uploader::Uploader(Device) { fail("{}", kCpuOnlyBuild); }
Uploader::~Uploader() = default;
void Uploader::submit(Upload) {}  // NOLINT(performance-unnecessary-value-param)
int64_t Uploader::held() const { return 0; }
void Uploader::drop(int64_t) noexcept {}
void Uploader::finish(const Progress&) {}
void Uploader::flush(int64_t) {}
Uploader::Bytes Uploader::bytes() const { return {}; }
Uploader::Bytes Uploader::file_bytes() const { return {}; }

}  // namespace sparsellm
