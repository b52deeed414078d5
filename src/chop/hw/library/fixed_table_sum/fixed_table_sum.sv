// Matrix-vector product with constants built in, data_out_0 = cast(weight * data_in_0 + bias), as
// sums of tables that groups of input bits are looked up in: no multiplier, one vector per cycle.
// Latency STAGES + 2 cycles; enable-gated pipeline into a skid buffer.
//
// The tables of a row follow each other; each adds to the sum of those before it. Sums on the way
// have no sign, the last one of a row is in two's complement. The compiler chooses groups, widths
// and which sums are registers; all rows end in the same cycle.
`default_nettype none

module fixed_table_sum #(
    parameter int DATA_IN_0_PRECISION_0        = 4,  // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 1,  // elements of an input vector, one beat
    parameter int DATA_OUT_0_PRECISION_0       = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 1,  // elements of an output vector, one beat
    parameter int ACC_WIDTH                    = 10,  // width of an exact result, bits, up to 64
    parameter int ACC_FRAC                     = 4,  // its fractional bits
    parameter bit IS_HALF_ADDED                = 1'b0,  // as in fixed_cast; it is in the tables
    parameter int STAGES                       = 0,  // cycles until the last additions, 0 or more
    parameter int TABLES                       = 1,  // of all rows, 1 or more
    parameter int COLUMNS                      = 1,  // of all tables: one for each bit that is added
    // Of each table 3 words of 64 bits. The first, from the low bits on: 7 width of the sum, 6 bits
    // below which nothing is added, 3 count of input bits, 1 first of its row, 1 sum is a register,
    // 5 cycles that the inputs are late, 16 row, 1 last of its row, 24 its first column. Then the
    // numbers of six input bits in the beat, 16 bits each.
    parameter logic [TABLES*192-1:0] NETWORK = 192'h0080_0001_0001,
    // Of each column, what the table gives for each of 64 addresses.
    parameter logic [COLUMNS*64-1:0] CONTENTS = 64'h0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_TENSOR_SIZE_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_OUT_0_TENSOR_SIZE_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_OUT_0_PRECISION_0 < 1 || ACC_WIDTH < 2
      || ACC_WIDTH > 64) begin : g_refuse_width
    $error("fixed_table_sum: widths must be 1 or more, a result has 2 to 64 bits, got %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_OUT_0_PRECISION_0, ACC_WIDTH);
  end
  if (DATA_IN_0_TENSOR_SIZE_DIM_0 < 1 || DATA_OUT_0_TENSOR_SIZE_DIM_0 < 1 || STAGES < 0
      || TABLES < DATA_OUT_0_TENSOR_SIZE_DIM_0 || COLUMNS < TABLES) begin : g_refuse_size
    $error("fixed_table_sum: %0d tables for %0d inputs and %0d outputs in %0d stages: there are no such",
           TABLES, DATA_IN_0_TENSOR_SIZE_DIM_0, DATA_OUT_0_TENSOR_SIZE_DIM_0, STAGES);
  end
`endif

  localparam int OUTPUTS = DATA_OUT_0_TENSOR_SIZE_DIM_0;
  localparam int IN_BITS = DATA_IN_0_TENSOR_SIZE_DIM_0 * DATA_IN_0_PRECISION_0;

  logic enable;
  logic [STAGES:0] valid_q;  // of the inputs after each cycle, and of the sums
  logic [(STAGES+1)*IN_BITS-1:0] inputs;  // of this cycle, of the one before …
  logic [OUTPUTS*ACC_WIDTH-1:0] sums_q;
  logic [OUTPUTS*DATA_OUT_0_PRECISION_0-1:0] cast;

  assign data_in_0_ready = enable;
  assign inputs[IN_BITS-1:0] = data_in_0;

  always_ff @(posedge clk) begin
    if (enable) valid_q <= (STAGES + 1)'({valid_q, data_in_0_valid});
    if (rst) valid_q <= '0;
  end

  if (STAGES > 0) begin : g_late
    logic [STAGES*IN_BITS-1:0] late_q;
    always_ff @(posedge clk) if (enable) late_q <= inputs[STAGES*IN_BITS-1:0];
    assign inputs[(STAGES+1)*IN_BITS-1:IN_BITS] = late_q;
  end

  for (genvar table_ = 0; table_ < TABLES; table_++) begin : g_table
    localparam logic [191:0] TOLD = NETWORK[table_*192+:192];
    localparam int WIDTH = 32'(TOLD[6:0]);
    localparam int LOW = 32'(TOLD[12:7]);
    localparam int BITS = 32'(TOLD[15:13]);
    localparam bit IS_FIRST = TOLD[16];
    localparam bit IS_REGISTER = TOLD[17];
    localparam int LATE = 32'(TOLD[22:18]);
    localparam int ROW = 32'(TOLD[38:23]);
    localparam bit IS_LAST = TOLD[39];
    localparam int COLUMN = 32'(TOLD[63:40]);
    logic [5:0] address;
    logic [WIDTH-LOW-1:0] term;
    logic [WIDTH-1:0] value, now;

    for (genvar k = 0; k < 6; k++) begin : g_bit
      if (k < BITS) begin : g_read
        assign address[k] = inputs[LATE*IN_BITS+32'(TOLD[64+k*16+:16])];
      end else begin : g_none
        assign address[k] = 1'b0;
      end
    end
    for (genvar place = LOW; place < WIDTH; place++) begin : g_column
      localparam logic [63:0] GIVEN = CONTENTS[(COLUMN+place-LOW)*64+:64];
      // not GIVEN[address]: Yosys moves registers of an address through what it takes for a memory,
      // and the table is then no part of the LUT before the carry chain
      assign term[place-LOW] = 1'(GIVEN >> address);
    end

    if (IS_FIRST) begin : g_first
      assign value = WIDTH'(term);
    end else begin : g_added
      logic [WIDTH-1:0] so_far;
      logic [WIDTH-LOW-1:0] sum;
      assign so_far = WIDTH'(g_table[table_-1].now);
      assign sum = so_far[WIDTH-1:LOW] + term;
      if (LOW > 0) begin : g_low
        assign value = {sum, so_far[LOW-1:0]};
      end else begin : g_whole
        assign value = sum;
      end
    end

    if (IS_REGISTER) begin : g_register
      always_ff @(posedge clk) if (enable) now <= value;
    end else begin : g_wire
      assign now = value;
    end

    if (IS_LAST) begin : g_last
      always_ff @(posedge clk) begin
        if (enable) sums_q[ROW*ACC_WIDTH+:ACC_WIDTH] <= ACC_WIDTH'($signed(value));
      end
    end

    wire logic unused_ok = &{1'b0, now, inputs};
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (ACC_WIDTH),
      .DATA_IN_0_PRECISION_1      (ACC_FRAC),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(OUTPUTS),
      .IS_HALF_ADDED              (IS_HALF_ADDED)
  ) u_fixed_cast (
      .data_in_0 (sums_q),
      .data_out_0(cast)
  );

  skid_buffer #(
      .DATA_WIDTH(OUTPUTS * DATA_OUT_0_PRECISION_0)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (cast),
      .data_in_0_valid (valid_q[STAGES]),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
