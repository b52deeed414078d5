// Streams the elements of each tensor in another order (transpose, flatten, any permutation).
// Latency: the whole tensor; throughput 1 beat per cycle, one tensor is read while the next loads.
`default_nettype none

module stream_reorder #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // bits of one element, 1 or more
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0 = 8,  // elements of a tensor
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 2,  // elements per beat; divides the size
    // One word per output beat: for each lane, lane 0 in the low bits, the index of its element.
    parameter     INIT_FILE                   = "order.mem"
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_TENSOR_SIZE_DIM_0 < 1) begin : g_refuse_size
    $error("stream_reorder: width and elements must be 1 or more, got %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_IN_0_TENSOR_SIZE_DIM_0);
  end
  if (DATA_IN_0_PARALLELISM_DIM_0 < 1
      || DATA_IN_0_TENSOR_SIZE_DIM_0 % DATA_IN_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_lanes
    $error("stream_reorder: the parallelism must divide the tensor, got %0d of %0d",
           DATA_IN_0_PARALLELISM_DIM_0, DATA_IN_0_TENSOR_SIZE_DIM_0);
  end
`endif

  localparam int WIDTH = DATA_IN_0_PRECISION_0;
  localparam int SIZE = DATA_IN_0_TENSOR_SIZE_DIM_0;
  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int BEATS = SIZE / LANES;
  localparam int INDEX_WIDTH = SIZE > 1 ? $clog2(SIZE) : 1;
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int BANK_SLOTS = 2 ** INDEX_WIDTH;

  logic [WIDTH-1:0] elements_q[2*BANK_SLOTS];
  logic [LANES*INDEX_WIDTH-1:0] order[BEATS];
  logic [LANES*INDEX_WIDTH-1:0] indices;
  logic [BEAT_WIDTH-1:0] write_q, read_q;
  logic write_bank_q, read_bank_q;
  logic [1:0] full_q;
  logic push, pop, filled, emptied;

  initial $readmemh(INIT_FILE, order);

  assign data_in_0_ready  = full_q != 2'd2;
  assign data_out_0_valid = full_q != 2'd0;
  assign push             = data_in_0_valid && data_in_0_ready;
  assign pop              = data_out_0_valid && data_out_0_ready;
  assign filled           = push && write_q == BEAT_WIDTH'(BEATS - 1);
  assign emptied          = pop && read_q == BEAT_WIDTH'(BEATS - 1);
  assign indices          = order[read_q];

  always_comb begin
    for (int lane = 0; lane < LANES; lane++) begin
      data_out_0[lane*WIDTH+:WIDTH] =
          elements_q[{read_bank_q, indices[lane*INDEX_WIDTH+:INDEX_WIDTH]}];
    end
  end

  always_ff @(posedge clk) begin
    if (push) begin
      for (int lane = 0; lane < LANES; lane++) begin
        elements_q[{write_bank_q, INDEX_WIDTH'(32'(write_q) * LANES + lane)}] <=
            data_in_0[lane*WIDTH+:WIDTH];
      end
      write_q <= filled ? '0 : write_q + 1'b1;
    end
    if (pop) read_q <= emptied ? '0 : read_q + 1'b1;
    if (filled) write_bank_q <= !write_bank_q;
    if (emptied) read_bank_q <= !read_bank_q;
    if (filled && !emptied) full_q <= full_q + 1'b1;
    if (emptied && !filled) full_q <= full_q - 1'b1;
    if (rst) begin
      write_q      <= '0;
      read_q       <= '0;
      write_bank_q <= 1'b0;
      read_bank_q  <= 1'b0;
      full_q       <= '0;
    end
  end

endmodule

`default_nettype wire
