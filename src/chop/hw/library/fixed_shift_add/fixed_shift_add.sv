// Matrix-vector product with constants built in, data_out_0 = cast(weight * data_in_0 + bias), as a
// network of shifted additions: no multiplier, one vector per cycle.
// Latency STAGES + 2 cycles; enable-gated pipeline into a skid buffer.
//
// The network is a list of nodes: the inputs first, then sums a + (b << shift) or a - (b << shift)
// of nodes before it. The compiler chooses them, their widths and which are registers; a node whose
// value is wanted some cycles later keeps it so long.
`default_nettype none

module fixed_shift_add #(
    parameter int DATA_IN_0_PRECISION_0        = 4,  // width of an input element, bits, 1 or more
    parameter bit DATA_IN_0_IS_SIGNED          = 1'b1,  // two's complement
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 1,  // elements of an input vector, one beat
    parameter int DATA_OUT_0_PRECISION_0       = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 1,  // elements of an output vector, one beat
    parameter int ACC_WIDTH                    = 10,  // width of an exact result, bits, up to 64
    parameter int ACC_FRAC                     = 4,  // its fractional bits
    parameter bit IS_HALF_ADDED                = 1'b0,  // as in fixed_cast; it is in STARTS
    parameter int STAGES                       = 0,  // cycles until all nodes are there, 0 or more
    parameter int NODES                        = 1,  // inputs and sums
    // Of each node, node 0 in the low bits: 16 bits a, 16 b, 6 shift, 1 difference, 1 register,
    // 7 width, and in cycles 5 lateness of a, 5 of b, 5 for which the node keeps its value.
    parameter logic [NODES*64-1:0] NETWORK = 64'h0000_0400_0000_0000,
    // Of each output: 16 bits node, 6 shift, 1 negative, 1 constant (no node), 5 lateness.
    parameter logic [DATA_OUT_0_TENSOR_SIZE_DIM_0*64-1:0] SUMS = 64'h0,
    // What each output starts from: its bias.
    parameter logic [DATA_OUT_0_TENSOR_SIZE_DIM_0*64-1:0] STARTS = 64'h0
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
    $error("fixed_shift_add: widths must be 1 or more, a result has 2 to 64 bits, got %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_OUT_0_PRECISION_0, ACC_WIDTH);
  end
  if (DATA_IN_0_TENSOR_SIZE_DIM_0 < 1 || DATA_OUT_0_TENSOR_SIZE_DIM_0 < 1 || STAGES < 0
      || NODES < DATA_IN_0_TENSOR_SIZE_DIM_0) begin : g_refuse_size
    $error("fixed_shift_add: %0d nodes for %0d inputs and %0d outputs in %0d stages: there are no such",
           NODES, DATA_IN_0_TENSOR_SIZE_DIM_0, DATA_OUT_0_TENSOR_SIZE_DIM_0, STAGES);
  end
`endif

  localparam int INPUTS = DATA_IN_0_TENSOR_SIZE_DIM_0;
  localparam int OUTPUTS = DATA_OUT_0_TENSOR_SIZE_DIM_0;
  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;

  logic enable;
  logic [STAGES:0] valid_q;  // of the nodes after each cycle, and of the sums
  logic [OUTPUTS*ACC_WIDTH-1:0] sums_q;
  logic [OUTPUTS*DATA_OUT_0_PRECISION_0-1:0] cast;

  assign data_in_0_ready = enable;

  always_ff @(posedge clk) begin
    if (enable) valid_q <= (STAGES + 1)'({valid_q, data_in_0_valid});
    if (rst) valid_q <= '0;
  end

  for (genvar node = 0; node < NODES; node++) begin : g_node
    localparam logic [63:0] TOLD = NETWORK[node*64+:64];
    localparam int WIDTH = 32'(TOLD[46:40]);
    localparam int KEPT = 32'(TOLD[61:57]);
    logic signed [WIDTH-1:0] value, now;
    logic [(KEPT > 0 ? KEPT : 1)*WIDTH-1:0] late_q;

    if (node < INPUTS) begin : g_input
      logic sign;
      assign sign  = DATA_IN_0_IS_SIGNED && data_in_0[node*IN_WIDTH+IN_WIDTH-1];
      assign value = WIDTH'($signed({sign, data_in_0[node*IN_WIDTH+:IN_WIDTH]}));
    end else begin : g_sum
      localparam int A = 32'(TOLD[15:0]);
      localparam int B = 32'(TOLD[31:16]);
      localparam int SHIFT = 32'(TOLD[37:32]);
      localparam int A_LATE = 32'(TOLD[51:47]);
      localparam int B_LATE = 32'(TOLD[56:52]);
      localparam int A_WIDTH = 32'(NETWORK[A*64+40+:7]);
      localparam int B_WIDTH = 32'(NETWORK[B*64+40+:7]);
      logic signed [WIDTH-1:0] a;
      logic signed [WIDTH-SHIFT-1:0] high, b, sum;
      if (A_LATE == 0) begin : g_a
        assign a = WIDTH'(g_node[A].now);
      end else begin : g_a
        assign a = WIDTH'($signed(g_node[A].late_q[(A_LATE-1)*A_WIDTH+:A_WIDTH]));
      end
      if (B_LATE == 0) begin : g_b
        assign b = (WIDTH - SHIFT)'(g_node[B].now);
      end else begin : g_b
        assign b = (WIDTH - SHIFT)'($signed(g_node[B].late_q[(B_LATE-1)*B_WIDTH+:B_WIDTH]));
      end
      assign high = a[WIDTH-1:SHIFT];  // below the shift nothing is added
      if (TOLD[38]) begin : g_difference
        assign sum = high - b;
      end else begin : g_plus
        assign sum = high + b;
      end
      if (SHIFT > 0) begin : g_low
        assign value = {sum, a[SHIFT-1:0]};
      end else begin : g_whole
        assign value = sum;
      end
    end

    if (TOLD[39]) begin : g_register
      always_ff @(posedge clk) if (enable) now <= value;
    end else begin : g_wire
      assign now = value;
    end

    if (KEPT > 0) begin : g_keep
      always_ff @(posedge clk) if (enable) late_q <= (KEPT * WIDTH)'({late_q, now});
    end else begin : g_forget
      assign late_q = now;
    end

    wire logic unused_ok = &{1'b0, now, late_q};
  end

  for (genvar out = 0; out < OUTPUTS; out++) begin : g_out
    localparam logic [63:0] TOLD = SUMS[out*64+:64];
    localparam logic signed [ACC_WIDTH-1:0] START = STARTS[out*64+:ACC_WIDTH];
    localparam int A = 32'(TOLD[15:0]);
    localparam int SHIFT = 32'(TOLD[21:16]);
    localparam int LATE = 32'(TOLD[28:24]);
    localparam int A_WIDTH = 32'(NETWORK[A*64+40+:7]);
    logic signed [ACC_WIDTH-1:0] exact;

    if (TOLD[23]) begin : g_constant
      assign exact = START;
    end else begin : g_node_sum
      localparam logic signed [ACC_WIDTH-SHIFT-1:0] HIGH = START[ACC_WIDTH-1:SHIFT];
      logic signed [ACC_WIDTH-SHIFT-1:0] a, sum;
      if (LATE == 0) begin : g_a
        assign a = (ACC_WIDTH - SHIFT)'(g_node[A].now);
      end else begin : g_a
        assign a = (ACC_WIDTH - SHIFT)'($signed(g_node[A].late_q[(LATE-1)*A_WIDTH+:A_WIDTH]));
      end
      assign sum = TOLD[22] ? HIGH - a : HIGH + a;
      if (SHIFT > 0) begin : g_low
        assign exact = {sum, START[SHIFT-1:0]};
      end else begin : g_whole
        assign exact = sum;
      end
    end

    always_ff @(posedge clk) if (enable) sums_q[out*ACC_WIDTH+:ACC_WIDTH] <= exact;
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
