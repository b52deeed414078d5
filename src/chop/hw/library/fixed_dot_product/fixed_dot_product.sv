// Exact dot products of one data vector with OUTPUTS weight vectors; a tag travels along.
// Enable-gated pipeline. Latency OPERAND_REGISTERS + min(LANES, 4) enabled cycles, and one for each
// TREE_STEP levels of the tree that adds the chains; throughput one vector per enabled cycle.
//
// Lanes are summed in chains of four: each adds its product to the sum of the lane before, one
// cycle later, which is what a DSP block does. The operands of a lane wait for its turn.
`default_nettype none

module fixed_dot_product #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of a data element, bits, 1 or more
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int WEIGHT_PRECISION_0          = 8,  // width of a weight, bits, 1 or more
    parameter bit WEIGHT_IS_SIGNED            = 1'b1,  // two's complement
    // Two outputs share a multiplier: x * (b << n | a) is both products, n bits apart.
    parameter bit IS_PACKED                   = 1'b0,
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 4,  // lanes: elements per vector, 1 or more
    parameter int OUTPUTS                     = 1,  // dot products, 1 or more
    parameter int TAG_WIDTH                   = 1,  // bits of the tag, 1 or more; reset to 0
    // Registers of an operand, 1 or more: the last lies in the multiplier, which may be far away.
    parameter int OPERAND_REGISTERS           = 1,
    parameter int TREE_STEP                   = 1,  // levels of the tree between registers, 1 or more
    // Width of a dot product: the product grows by the bits of the lane count, so it is exact.
    parameter int SUM_WIDTH =
        DATA_IN_0_PRECISION_0 + (DATA_IN_0_IS_SIGNED ? 0 : 1)
        + WEIGHT_PRECISION_0 + (WEIGHT_IS_SIGNED ? 0 : 1) + $clog2(DATA_IN_0_PARALLELISM_DIM_0)
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic enable,
    input  wire logic [TAG_WIDTH-1:0] tag_in,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic [OUTPUTS*DATA_IN_0_PARALLELISM_DIM_0*WEIGHT_PRECISION_0-1:0] weight,
    output      logic [OUTPUTS*SUM_WIDTH-1:0] data_out_0,
    output      logic [TAG_WIDTH-1:0] tag_out
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || WEIGHT_PRECISION_0 < 1
      || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_dot_product: widths and lanes must be 1 or more, got %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, WEIGHT_PRECISION_0, DATA_IN_0_PARALLELISM_DIM_0);
  end
  if (OUTPUTS < 1 || TAG_WIDTH < 1 || OPERAND_REGISTERS < 1
      || TREE_STEP < 1) begin : g_refuse_pipeline
    $error("fixed_dot_product: OUTPUTS, TAG_WIDTH and registers must be 1 or more, got %0d, %0d, %0d",
           OUTPUTS, TAG_WIDTH, OPERAND_REGISTERS);
  end
`endif

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int DATA_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int WEIGHT_WIDTH = WEIGHT_PRECISION_0;
  localparam int X_WIDTH = DATA_WIDTH + (DATA_IN_0_IS_SIGNED ? 0 : 1);  // as signed numbers
  localparam int W_WIDTH = WEIGHT_WIDTH + (WEIGHT_IS_SIGNED ? 0 : 1);
  localparam int PRODUCT_WIDTH = X_WIDTH + W_WIDTH;
  localparam int CHAIN = LANES < 4 ? LANES : 4;
  localparam int CHAINS = (LANES + CHAIN - 1) / CHAIN;
  localparam int PADDED = CHAINS * CHAIN;  // the lanes that fill the last chain multiply zeros
  localparam int LEVELS = $clog2(CHAINS);
  localparam int LEAVES = 1 << LEVELS;
  localparam int LATENCY = OPERAND_REGISTERS + CHAIN + (LEVELS + TREE_STEP - 1) / TREE_STEP;

  logic [LATENCY*TAG_WIDTH-1:0] tags_q;
  assign tag_out = tags_q[(LATENCY-1)*TAG_WIDTH+:TAG_WIDTH];
  always_ff @(posedge clk) begin
    if (enable) tags_q <= (LATENCY * TAG_WIDTH)'({tags_q, tag_in});
    if (rst) tags_q <= '0;
  end

  logic [LANES*DATA_WIDTH-1:0] data_late;
  logic [OUTPUTS*PADDED*SUM_WIDTH-1:0] sums;

  for (genvar lane = 0; lane < PADDED; lane++) begin : g_lane
    // Lanes 0 and 1 start together: the sum register of lane 1 follows both product registers.
    localparam int WAIT = OPERAND_REGISTERS - 1 + (lane % CHAIN < 2 ? 1 : lane % CHAIN);

    if (lane < LANES) begin : g_data
      logic [WAIT*DATA_WIDTH-1:0] data_q;
      assign data_late[lane*DATA_WIDTH+:DATA_WIDTH] = data_q[(WAIT-1)*DATA_WIDTH+:DATA_WIDTH];
      always_ff @(posedge clk) begin
        if (enable) begin
          data_q <= (WAIT * DATA_WIDTH)'({data_q, data_in_0[lane*DATA_WIDTH+:DATA_WIDTH]});
        end
      end
    end

    for (genvar out = 0; out < OUTPUTS; out++) begin : g_output
      localparam int HERE = (out * PADDED + lane) * SUM_WIDTH;
      logic signed [PRODUCT_WIDTH-1:0] product_q;

      if (lane >= LANES) begin : g_no_product
        assign product_q = '0;
      end else if (IS_PACKED && out % 2 == 1) begin : g_second
        // Below it is a signed number: where that is negative, it has borrowed one.
        logic signed [PRODUCT_WIDTH-1:0] high;
        assign high = g_output[out-1].g_pair.pair_q[2*PRODUCT_WIDTH-1:PRODUCT_WIDTH];
        logic borrowed;
        assign borrowed = g_output[out-1].product_q[PRODUCT_WIDTH-1];
        assign product_q = high + PRODUCT_WIDTH'({1'b0, borrowed});
      end else if (IS_PACKED && out + 1 < OUTPUTS) begin : g_pair
        localparam int AT = (out * LANES + lane) * WEIGHT_WIDTH;
        localparam int PAIR_WIDTH = PRODUCT_WIDTH + W_WIDTH + 1;
        logic [WAIT*PAIR_WIDTH-1:0] weight_q;
        logic signed [X_WIDTH-1:0] x;
        logic signed [W_WIDTH-1:0] a, b;
        logic signed [PAIR_WIDTH-1:0] w, joined;
        logic signed [2*PRODUCT_WIDTH:0] pair_q;
        assign x = X_WIDTH'(data_late[lane*DATA_WIDTH+:DATA_WIDTH]);
        assign a = W_WIDTH'(weight[AT+:WEIGHT_WIDTH]);
        assign b = W_WIDTH'(weight[AT+LANES*WEIGHT_WIDTH+:WEIGHT_WIDTH]);
        assign joined = (PAIR_WIDTH'(b) <<< PRODUCT_WIDTH) + PAIR_WIDTH'(a);
        assign w = weight_q[(WAIT-1)*PAIR_WIDTH+:PAIR_WIDTH];
        assign product_q = pair_q[PRODUCT_WIDTH-1:0];
        always_ff @(posedge clk) begin
          if (enable) begin
            weight_q <= (WAIT * PAIR_WIDTH)'({weight_q, joined});
            pair_q   <= x * w;
          end
        end
        wire logic unused_ok = &{1'b0, pair_q[2*PRODUCT_WIDTH]};
      end else begin : g_product
        localparam int AT = (out * LANES + lane) * WEIGHT_WIDTH;
        logic [WAIT*WEIGHT_WIDTH-1:0] weight_q;
        logic signed [X_WIDTH-1:0] x;
        logic signed [W_WIDTH-1:0] w;
        assign x = X_WIDTH'(data_late[lane*DATA_WIDTH+:DATA_WIDTH]);
        assign w = W_WIDTH'(weight_q[(WAIT-1)*WEIGHT_WIDTH+:WEIGHT_WIDTH]);
        always_ff @(posedge clk) begin
          if (enable) begin
            weight_q  <= (WAIT * WEIGHT_WIDTH)'({weight_q, weight[AT+:WEIGHT_WIDTH]});
            product_q <= x * w;
          end
        end
      end

      if (lane % CHAIN == 0) begin : g_head
        assign sums[HERE+:SUM_WIDTH] = SUM_WIDTH'(product_q);
      end else begin : g_link
        logic signed [SUM_WIDTH-1:0] sum_q;
        assign sums[HERE+:SUM_WIDTH] = sum_q;
        always_ff @(posedge clk) begin
          if (enable) sum_q <= $signed(sums[HERE-SUM_WIDTH+:SUM_WIDTH]) + SUM_WIDTH'(product_q);
        end
      end
    end
  end

  for (genvar out = 0; out < OUTPUTS; out++) begin : g_total
    if (CHAINS == 1) begin : g_one
      assign data_out_0[out*SUM_WIDTH+:SUM_WIDTH] =
          sums[(out*PADDED+PADDED-1)*SUM_WIDTH+:SUM_WIDTH];
    end else begin : g_many
      // A tree: node i is the sum of nodes 2 i and 2 i + 1, and the chains are its leaves.
      logic [2*LEAVES*SUM_WIDTH-1:0] nodes  /*verilator split_var*/;  // node by node
      assign nodes[0+:SUM_WIDTH] = '0;
      for (genvar leaf = 0; leaf < LEAVES; leaf++) begin : g_leaf
        if (leaf < CHAINS) begin : g_chain
          assign nodes[(LEAVES+leaf)*SUM_WIDTH+:SUM_WIDTH] =
              sums[(out*PADDED+leaf*CHAIN+CHAIN-1)*SUM_WIDTH+:SUM_WIDTH];
        end else begin : g_nothing
          assign nodes[(LEAVES+leaf)*SUM_WIDTH+:SUM_WIDTH] = '0;
        end
      end
      for (genvar node = 1; node < LEAVES; node++) begin : g_node
        localparam int LEVEL = LEVELS + 1 - $clog2(node + 1);  // 1 above the leaves
        logic [SUM_WIDTH-1:0] sum;
        assign sum = nodes[2*node*SUM_WIDTH+:SUM_WIDTH] + nodes[(2*node+1)*SUM_WIDTH+:SUM_WIDTH];
        if (LEVEL % TREE_STEP == 0 || LEVEL == LEVELS) begin : g_register
          logic [SUM_WIDTH-1:0] sum_q;
          assign nodes[node*SUM_WIDTH+:SUM_WIDTH] = sum_q;
          always_ff @(posedge clk) if (enable) sum_q <= sum;
        end else begin : g_no_register
          assign nodes[node*SUM_WIDTH+:SUM_WIDTH] = sum;
        end
      end
      wire logic unused_ok = &{1'b0, nodes[0+:SUM_WIDTH]};
      assign data_out_0[out*SUM_WIDTH+:SUM_WIDTH] = nodes[SUM_WIDTH+:SUM_WIDTH];
    end
  end

endmodule

`default_nettype wire
