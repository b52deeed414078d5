// Streams elements of each tensor in another order: transpose, flatten, any permutation; some may be
// left out, and whole beats may come again.
// Latency: the whole tensor and 2 cycles; throughput 1 beat per cycle, one tensor is read while the
// next loads.
//
// Both tensors lie in block RAM. Where whole beats move, a word is a beat. Else there is one bank
// for each lane, and the files say for every beat which bank takes and gives which lane: no bank is
// wanted twice in a beat. What is read is never what is written: one half is full, the other loads.
`default_nettype none

module stream_reorder #(
    parameter int DATA_IN_0_PRECISION_0        = 8,  // bits of one element, 1 or more
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 8,  // elements of an input tensor
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 8,  // elements of an output tensor
    parameter int DATA_IN_0_PARALLELISM_DIM_0  = 2,  // elements per beat; divides both sizes
    parameter bit MOVES_BEATS                  = 1'b0,  // whole beats move
    // One word per output beat. Where whole beats move: the input beat. Else for each lane, lane 0 in
    // the low bits, its bank, and above them for each bank the input beat that it gives.
    parameter     INIT_FILE                    = "order.mem",
    parameter     WRITE_FILE                   = "write.mem"  // per input beat: for each bank its lane
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
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_TENSOR_SIZE_DIM_0 < 1
      || DATA_OUT_0_TENSOR_SIZE_DIM_0 < 1) begin : g_refuse_size
    $error("stream_reorder: width and elements must be 1 or more, got %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_IN_0_TENSOR_SIZE_DIM_0, DATA_OUT_0_TENSOR_SIZE_DIM_0);
  end
  if (DATA_IN_0_PARALLELISM_DIM_0 < 1
      || DATA_IN_0_TENSOR_SIZE_DIM_0 % DATA_IN_0_PARALLELISM_DIM_0 != 0
      || DATA_OUT_0_TENSOR_SIZE_DIM_0 % DATA_IN_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_lanes
    $error("stream_reorder: the parallelism must divide the tensors, got %0d of %0d and %0d",
           DATA_IN_0_PARALLELISM_DIM_0, DATA_IN_0_TENSOR_SIZE_DIM_0, DATA_OUT_0_TENSOR_SIZE_DIM_0);
  end
`endif

  localparam int WIDTH = DATA_IN_0_PRECISION_0;
  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int IN_BEATS = DATA_IN_0_TENSOR_SIZE_DIM_0 / LANES;
  localparam int OUT_BEATS = DATA_OUT_0_TENSOR_SIZE_DIM_0 / LANES;
  localparam int ADDRESS_WIDTH = IN_BEATS > 1 ? $clog2(IN_BEATS) : 1;
  localparam int READ_WIDTH = OUT_BEATS > 1 ? $clog2(OUT_BEATS) : 1;
  localparam int BANK_WIDTH = LANES > 1 ? $clog2(LANES) : 1;
  localparam int ORDER_WIDTH =
      MOVES_BEATS ? ADDRESS_WIDTH : LANES * (BANK_WIDTH + ADDRESS_WIDTH);

  logic [ORDER_WIDTH-1:0] order[OUT_BEATS];
  logic [ORDER_WIDTH-1:0] order_q;
  logic [ADDRESS_WIDTH-1:0] write_q, write_next;
  logic [READ_WIDTH-1:0] read_q, read_next;
  logic write_half_q, read_half_q, read_valid_q;
  logic [1:0] full_q;
  logic [LANES*WIDTH-1:0] beat;
  logic push, issue, filled, emptied, enable;

  initial $readmemh(INIT_FILE, order);

  assign data_in_0_ready = full_q != 2'd2;
  assign push            = data_in_0_valid && data_in_0_ready;
  assign issue           = full_q != 2'd0 && enable;
  assign filled          = push && write_q == ADDRESS_WIDTH'(IN_BEATS - 1);
  assign emptied         = issue && read_q == READ_WIDTH'(OUT_BEATS - 1);

  always_comb begin
    write_next = push ? write_q + 1'b1 : write_q;
    if (filled) write_next = '0;
    if (rst) write_next = '0;
    read_next = issue ? read_q + 1'b1 : read_q;
    if (emptied) read_next = '0;
    if (rst) read_next = '0;
  end

  // The words of the files are those of the counters: read with the counters' next values.
  always_ff @(posedge clk) begin
    order_q <= order[read_next];
    write_q <= write_next;
    read_q  <= read_next;
    if (enable) read_valid_q <= issue;
    if (filled) write_half_q <= !write_half_q;
    if (emptied) read_half_q <= !read_half_q;
    if (filled && !emptied) full_q <= full_q + 1'b1;
    if (emptied && !filled) full_q <= full_q - 1'b1;
    if (rst) begin
      read_valid_q <= 1'b0;
      write_half_q <= 1'b0;
      read_half_q  <= 1'b0;
      full_q       <= '0;
    end
  end

  if (MOVES_BEATS) begin : g_beats
    (* no_rw_check *) logic [LANES*WIDTH-1:0] beats[2**(ADDRESS_WIDTH+1)];
    always_ff @(posedge clk) begin
      if (push) beats[{write_half_q, write_q}] <= data_in_0;
      if (enable) beat <= beats[{read_half_q, order_q}];
    end
  end else begin : g_elements
    logic [LANES*BANK_WIDTH-1:0] lanes[IN_BEATS];
    logic [LANES*BANK_WIDTH-1:0] lanes_q, banks_q;
    logic [LANES*WIDTH-1:0] given_q;

    initial $readmemh(WRITE_FILE, lanes);

    always_ff @(posedge clk) begin
      lanes_q <= lanes[write_next];
      if (enable) banks_q <= order_q[LANES*BANK_WIDTH-1:0];
    end

    for (genvar bank = 0; bank < LANES; bank++) begin : g_bank
      localparam int AT = LANES * BANK_WIDTH + bank * ADDRESS_WIDTH;
      (* no_rw_check *) logic [WIDTH-1:0] elements[2**(ADDRESS_WIDTH+1)];
      logic [WIDTH-1:0] element;
      assign element = data_in_0[32'(lanes_q[bank*BANK_WIDTH+:BANK_WIDTH])*WIDTH+:WIDTH];
      always_ff @(posedge clk) begin
        if (push) elements[{write_half_q, write_q}] <= element;
        if (enable) begin
          given_q[bank*WIDTH+:WIDTH] <=
              elements[{read_half_q, order_q[AT+:ADDRESS_WIDTH]}];
        end
      end
    end

    for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
      assign beat[lane*WIDTH+:WIDTH] =
          given_q[32'(banks_q[lane*BANK_WIDTH+:BANK_WIDTH])*WIDTH+:WIDTH];
    end
  end

  skid_buffer #(
      .DATA_WIDTH(LANES * WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (beat),
      .data_in_0_valid (read_valid_q),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
